"""One server process: the loop comes from its factory, everything else is the same for all loops.

Protocol with the parent: one JSON line with the port when it listens; it ends when its standard
input does, with a second JSON line of its resource usage. Nothing else runs in between: what it
costs is read from outside (native/observe.c).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib
import json
import resource
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from . import files, protocols, streams, zerocopy

GRACE_SECONDS = 2.0
KINDS: dict[str, Callable[[int], Awaitable[asyncio.Server]]] = {
    "echo-protocol": protocols.serve_echo,
    "echo-buffered": protocols.serve_echo_buffered,
    "echo-streams": streams.serve_echo,
    "reqresp-streams": streams.serve_reqresp,
    "sink-protocol": protocols.serve_sink,
    "sink-buffered": protocols.serve_sink_buffered,
    "source-protocol": protocols.serve_source,
    "source-streams": streams.serve_source,
    "stream-readexactly": streams.serve_readexactly,
    "stream-readexactly-kept": streams.serve_readexactly_kept,
    "stream-read": streams.serve_read,
    "stream-readline": streams.serve_readline,
    "sendfile": files.serve_sendfile,
    "source-host": zerocopy.serve_source,
    "mixed": zerocopy.serve_mixed,
}


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def loop_factory(path: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """``module:function`` is the factory; ``module:function(module:function)`` wraps another."""
    outer, _, inner = path.removesuffix(")").partition("(")
    function = _named(outer)
    if inner:
        function = function(loop_factory(inner))
    return function


def _burn() -> None:
    """A thread that only computes, in pure Python, and so competes for the interpreter."""
    value = 1
    while True:
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF


def _usage(loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    """What the process used, and what the loop counted where it counts."""
    stats = getattr(loop, "zcloop_stats", None)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "user_s": usage.ru_utime,
        "system_s": usage.ru_stime,
        "voluntary": usage.ru_nvcsw,
        "involuntary": usage.ru_nivcsw,
        "max_rss_bytes": usage.ru_maxrss * 1024,
        "stats": dataclasses.asdict(stats()) if stats else {},
    }


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


async def _serve(kind: str, size: int, cpu_thread: bool) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    serve = KINDS[kind] if kind in KINDS else _named(kind)
    server = await serve(size)
    port = server.sockets[0].getsockname()[1]
    if cpu_thread:
        threading.Thread(target=_burn, daemon=True).start()
    _say({"port": port, "loop": f"{type(loop).__module__}.{type(loop).__qualname__}"})
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())
    server.close()
    # The client has closed its connections: their handlers end by themselves, and what is left
    # after the grace is cancelled when the loop ends.
    if handlers := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(handlers, timeout=GRACE_SECONDS)
    _say(_usage(loop))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.servers")
    parser.add_argument("--loop", required=True, help="module:factory")
    parser.add_argument("--kind", required=True, help=f"{', '.join(KINDS)}, or module:function")
    parser.add_argument("--size", type=int, default=0, help="bytes per read or write")
    parser.add_argument("--cpu-thread", action="store_true", help="compute in a thread beside")
    options = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    factory = loop_factory(options.loop)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(options.kind, options.size, options.cpu_thread))
