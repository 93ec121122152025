"""The parent process: owns the address, the folder and the choice of loop.

It serves nothing itself.  Its child accepts from the listening socket, which stays open
here, so that clients that connect while one child follows another wait in the backlog
instead of being refused.  Child and parent talk by lines of JSON on a socket pair; its
end tells each that the other is gone, however that happened.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from .options import DEFAULT_PORT, Options

__all__ = ["StartError", "serve"]

_PATIENCE = 10  # seconds a child has to stop before it is killed
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StartError(Exception):
    """The demo can't start; the message names cause and remedy."""


def serve(options: Options) -> int:
    """Run the demo until SIGINT, SIGTERM or SIGHUP; returns the exit status.

    Raises :exc:`StartError` when it can't start.
    """
    with _signals() as woken, _listen(options) as sock, _folder() as folder:
        host, port = sock.getsockname()[:2]
        supervisor = _Supervisor(options, sock, folder, woken)
        supervisor.start(options.loop)
        _announce(options, host, port)
        return supervisor.run()


class _Supervisor:
    def __init__(
        self, options: Options, sock: socket.socket, folder: str, woken: socket.socket
    ) -> None:
        self._options = options
        self._sock = sock
        self._folder = folder
        self._woken = woken
        self._generation = 0
        self._loop = options.loop
        self._lines = b""

    def start(self, loop: str) -> None:
        """Start a child on that loop, and wait until it serves or has failed."""
        self._loop = loop
        self._generation += 1
        self._control, theirs = socket.socketpair()
        self._lines = b""
        with theirs:
            settings = {
                "loop": loop,
                "generation": self._generation,
                "host": self._options.host,
                "folder": self._folder,
                "max_size": self._options.max_size,
                "listen": self._sock.fileno(),
                "control": theirs.fileno(),
            }
            self._child = subprocess.Popen(
                [sys.executable, "-m", __package__ + ".worker", json.dumps(settings)],
                pass_fds=(self._sock.fileno(), theirs.fileno()),
                stdin=subprocess.DEVNULL,
            )
        ready = self._message()
        if ready is None and not self._told_to_stop():
            self.stop()
            raise StartError(f"the application didn't start on {loop}; its error is above")

    def run(self) -> int:
        """Replace the child when it asks for that or dies; 0 once a signal came."""
        try:
            while not self._told_to_stop():
                message = self._message()
                if self._told_to_stop():
                    break
                if message is None:
                    self.stop()
                    print(f"The server process ended ({self._ending()}); starting it again.")
                    self.start(self._loop)
                else:
                    self.stop()
                    self.start(message["loop"])
                    print(f"Now running on {self._loop}.", flush=True)
        finally:
            self.stop()
        return 0

    def stop(self) -> None:
        """End the child, if need be by force."""
        self._child.terminate()
        try:
            self._child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._control.close()

    def _ending(self) -> str:
        status = self._child.returncode
        return f"signal {-status}" if status < 0 else f"status {status}"

    def _told_to_stop(self) -> bool:
        return bool(select.select([self._woken], [], [], 0)[0])

    def _message(self) -> dict[str, str] | None:
        """The child's next message; None when the child is gone, or a signal came first."""
        while b"\n" not in self._lines:
            readable, _, _ = select.select([self._control, self._woken], [], [])
            if self._woken in readable:
                return None
            received = self._control.recv(4096)
            if not received:
                return None
            self._lines += received
        line, _, self._lines = self._lines.partition(b"\n")
        message: dict[str, str] = json.loads(line)
        return message


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that becomes readable, and stays so, when one of _SIGNALS arrives."""
    reading, writing = socket.socketpair()
    with reading, writing:
        writing.setblocking(False)
        before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        fd = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(fd)
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    try:
        folder = tempfile.mkdtemp(prefix="zcloop-demo-")
    except OSError as exc:
        raise StartError(
            f"can't make a temporary folder ({exc.strerror}); set TMPDIR to one with room"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _listen(options: Options) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            options.host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as exc:
        raise StartError(
            f"--host {options.host} is no address of a machine ({exc.strerror}); use 127.0.0.1"
        ) from None
    port = DEFAULT_PORT if options.port is None else options.port
    try:
        return socket.create_server((address[0], port), family=family, backlog=128)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE and options.port is None:
            return socket.create_server((address[0], 0), family=family, backlog=128)
        raise StartError(_why_not(exc, options, port)) from None


def _why_not(exc: OSError, options: Options, port: int) -> str:
    if exc.errno == errno.EADDRINUSE:
        return f"port {port} is in use; leave --port out to get a free one, or name another"
    if exc.errno == errno.EACCES:
        return f"port {port} is for root only; name one from 1024 on"
    if exc.errno == errno.EADDRNOTAVAIL:
        return f"--host {options.host} is not an address of this machine; use 127.0.0.1"
    return f"can't listen on {options.host} port {port}: {os.strerror(exc.errno or 0)}"


def _announce(options: Options, host: str, port: int) -> None:
    address = ipaddress.ip_address(host.partition("%")[0])
    shown = "127.0.0.1" if host == "0.0.0.0" else "::1" if host == "::" else host
    shown = f"[{shown}]" if ":" in shown else shown
    print(f"zcloop demo on {options.loop}: http://{shown}:{port}/")
    if not address.is_loopback:
        print(
            "Warning: anybody who can reach this machine can upload files to it and read those "
            "of others; there is no password and no encryption."
        )
    print("Ctrl-C ends it and removes the uploaded files.", flush=True)
