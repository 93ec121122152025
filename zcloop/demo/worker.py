"""The child process: the application on one event loop, until told to stop.

Started by supervisor.py as ``python -m zcloop.demo.worker JSON``, with the listening
socket and one end of a socket pair.  It stops on SIGTERM.  When the other end of the
pair is closed, the parent is gone (killed, perhaps), and the folder is this process's
to remove.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from ..runner import new_event_loop
from .app import make_app
from .feed import Feed
from .meter import Meter
from .state import State
from .storage import Storage

__all__ = ["Worker", "loop_factory"]

_GRACE = 2.0  # seconds that a transfer has to end when the worker is told to stop
_READ_AHEAD = 1 << 18


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes a loop of that name (one of options.LOOPS)."""
    if name == "zcloop":
        return new_event_loop
    if name == "uvloop":
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        return factory
    return asyncio.SelectorEventLoop


class Worker:
    """One run of the application.

    ``settings`` are those that the parent sends: ``loop``, ``generation``, ``host``,
    ``folder`` and ``max_size``.
    """

    def __init__(self, settings: dict[str, Any], switch: Callable[[str], None]) -> None:
        self._meter = Meter(settings["loop"])
        feed = Feed(lambda: self._meter.sample(self._connections()))
        state = State(
            loop_name=settings["loop"],
            generation=settings["generation"],
            storage=Storage(Path(settings["folder"]), settings["max_size"]),
            meter=self._meter,
            feed=feed,
            switch=switch,
        )
        self._runner = web.AppRunner(
            make_app(state, settings["host"]),
            access_log=None,
            shutdown_timeout=_GRACE,
            lingering_time=5.0,
            read_bufsize=_READ_AHEAD,
        )

    def _connections(self) -> int:
        server = self._runner.server
        return len(server.connections) if server is not None else 0

    async def start(self, sock: socket.socket) -> None:
        """Serve what connects to ``sock``, which is closed with the worker."""
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()

    async def stop(self) -> None:
        """Close connections, after a moment for what is under way."""
        await self._runner.cleanup()


async def _serve(settings: dict[str, Any], sock: socket.socket, control: socket.socket) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    reader, writer = await asyncio.open_unix_connection(sock=control)

    def say(**message: object) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    worker = Worker(settings, lambda wanted: say(event="switch", loop=wanted))
    await worker.start(sock)
    say(event="ready")
    parent = asyncio.ensure_future(reader.read())
    stop = asyncio.ensure_future(told.wait())
    await asyncio.wait([parent, stop], return_when=asyncio.FIRST_COMPLETED)
    orphaned = parent.done()
    await worker.stop()
    stop.cancel()
    writer.close()
    if orphaned:
        shutil.rmtree(settings["folder"], ignore_errors=True)


def main() -> None:
    """The process's whole life."""
    settings = json.loads(sys.argv[1])
    # Ctrl-C goes to parent and child alike; the parent then tells us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=settings["listen"])
    control = socket.socket(fileno=settings["control"])
    with asyncio.Runner(loop_factory=loop_factory(settings["loop"])) as runner:
        runner.run(_serve(settings, sock, control))


if __name__ == "__main__":
    main()
