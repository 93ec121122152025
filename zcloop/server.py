"""Listening sockets: from the engine's accepted descriptors to transports."""

from __future__ import annotations

import contextvars
import errno
import os
import socket
from collections.abc import Callable
from typing import Any

from .engine import Engine, lib

__all__ = ["Listener"]

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_AFTER = 1.0
"""Seconds, as asyncio's ACCEPT_RETRY_DELAY."""


class Listener:
    """One listening socket of a server.

    ``make`` is called with each new connection's descriptor and its kind
    (family, type, protocol), in the context that the server was started in, and
    what it returns is called next: once ``make`` has returned, the descriptor
    is its transport's.  When the process is out of descriptors or
    memory the listener rests for a second, says so once, and goes on.
    """

    __slots__ = (
        "_context",
        "_engine",
        "_kind",
        "_loop",
        "_make",
        "_resting",
        "_slot",
        "_sock",
        "_told",
        "_window_open",
    )

    def __init__(
        self,
        loop: Any,
        engine: Engine,
        sock: socket.socket,
        make: Callable[[int, tuple[int, int, int]], Callable[[], object]],
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._sock = sock
        # Numbers: turning them into enumeration members costs a microsecond each time.
        self._kind = (int(sock.family), int(sock.type), sock.proto)
        self._make = make
        self._context = contextvars.copy_context()
        self._resting: Any = None
        self._told = False
        self._window_open = False
        self._slot = engine.add(sock.fileno(), self, lib.ZC_MODE_LISTEN)

    def close(self) -> None:
        """Stop accepting; the socket stays its owner's to close."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._slot >= 0:
            self._engine.remove(self._slot)
            self._slot = -1

    def _on_accepted(self, fd: int) -> None:
        self._told = False
        try:
            lib.zc_inherit_lowat(fd, self._sock.fileno())
            start = self._context.run(self._make, fd, self._kind)
        except (SystemExit, KeyboardInterrupt):
            os.close(fd)
            raise
        except BaseException as exc:
            os.close(fd)
            self._report("Error on transport creation for incoming connection", exc)
            return
        # From here on the transport owns the socket.
        opened = self._engine.windows_opened
        try:
            self._context.run(start)
            if self._engine.windows_opened > opened and not self._window_open:
                # The next ones have it from their first byte on.
                self._window_open = True
                lib.zc_open_window(self._sock.fileno())
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._report("Fatal error: protocol.connection_made() call failed.", exc)

    def _report(self, message: str, exc: BaseException, **more: object) -> None:
        self._loop.call_exception_handler({"message": message, "exception": exc, **more})

    def _on_error(self, exc: OSError) -> None:
        out_of_resources = exc.errno in _OUT_OF_RESOURCES
        if not self._told:
            self._told = True
            why = "out of system resource" if out_of_resources else "failed"
            self._report(f"socket.accept() {why}", exc, socket=self._sock)
        if out_of_resources or self._sock.fileno() >= 0:
            self._engine.remove(self._slot)
            self._slot = -1
            self._resting = self._loop.call_later(_RETRY_AFTER, self._resume)
        else:
            self.close()

    def _resume(self) -> None:
        self._resting = None
        if self._sock.fileno() >= 0:
            self._slot = self._engine.add(self._sock.fileno(), self, lib.ZC_MODE_LISTEN)
