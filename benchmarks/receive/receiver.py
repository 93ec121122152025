"""One receiver process in Python: one connection, received in one of several ways.

It does what native/reference/receive.c does, and prints the same record: a line with the port when
it listens, then, when the stream has ended, what it cost. Every byte goes through the hash of the
C program.

===================  ============================================================================
kind                 how
===================  ============================================================================
``reused``           `BufferedProtocol`, one bytearray again and again; pieces hashed as they come
``reused-aligned``   the same, of anonymous memory, which begins on a page (see `_shifted`)
``fresh``            `BufferedProtocol`, a fresh bytearray for each message; kept
``fresh-shifted``    the same, each buffer used from the first cache line on (see `_shifted`); kept
``streams``          `StreamReader.readexactly`, let go at once
``streams-keep``     the same, kept
``pages``            `PagesProtocol`, views let go at once, what isn't mapped into one bytearray
``pages-keep``       the same, views kept, what isn't mapped into fresh bytearrays; kept
``pagebuffer``       `BufferedProtocol`, one `PageBuffer` again and again
``pagebuffer-keep``  a fresh `PageBuffer` for each message; kept
``pagebuffer-exact`` the same with ``exact=True``
``readview``         `StreamReader.readview`, let go at once
``readview-keep``    the same, kept
===================  ============================================================================

What is kept is kept to the end of the stream; what letting go costs is told beside the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import mmap
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, cast

from ..servers.main import loop_factory

_NEVER = 2**64 - 1
KEPT_BLOCK = 1 << 20
"""Bytes of the blocks that ``pages-keep`` keeps unmapped bytes in, as the C program's."""
LIFE_SECONDS = 300
"""A receiver whose parent was killed ends by itself."""

def load_hash(path: str) -> Any:
    """The module zcref_hash from where `benchmarks.build.reference_hash` has put it."""
    loader = ExtensionFileLoader("zcref_hash", path)
    spec = spec_from_file_location("zcref_hash", path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


class Moment:
    """Clocks and counters of this process."""

    def __init__(self) -> None:
        self.wall = time.perf_counter()
        self.cpu = time.process_time()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.voluntary = usage.ru_nvcsw
        self.involuntary = usage.ru_nivcsw
        self.faults = usage.ru_minflt


class Account:
    """What every receiver keeps: hash, bytes, clock, what is kept, and the answers that are due."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.closed = asyncio.get_running_loop().create_future()
        self.record: dict[str, Any] = {"error": "the stream did not come to its end"}
        self.transport: asyncio.Transport
        self.answered = 0
        self.start: Moment | None = None
        self.started_at = 0
        self.kept: list[Any] = []
        self.message = options.header + options.size
        taker: Any = load_hash(options.library).Taker
        self.taker = taker(options.hash, options.warmup, self._reached)
        self.take: Callable[[Any], object] = self.taker.take
        """Takes the next of the stream."""

    def connected(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if lowat := self.options.lowat:
            if hasattr(transport, "set_read_lowat"):
                transport.set_read_lowat(lowat)
            else:
                sock = transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lowat)

    def _reached(self) -> int:
        """So many bytes have come that the clock begins, or that answers are due."""
        received: int = self.taker.received()
        if self.start is None:
            self.started_at = received
            self.start = Moment()
        if not self.options.answer:
            return _NEVER
        due = received // self.message - self.answered
        if due:
            self.answered += due
            self.transport.write(bytes(self.options.answer * due))
        return (self.answered + 1) * self.message

    def finish(self) -> None:
        """The stream has ended and everything was taken."""
        self.end = Moment()
        self.counters = self._counters()
        self.kept.clear()
        # What letting go leaves for later is done by then.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._report)

    def _counters(self) -> dict[str, int]:
        """zcloop's own, of this connection."""
        stats: Any = self.transport.get_extra_info("zcloop")
        return dataclasses.asdict(stats) if stats is not None else {}

    def _report(self) -> None:
        released = Moment()
        start, end = self.start, self.end
        assert start is not None
        value, received = self.taker.value(), self.taker.received()
        self.transport.write(struct.pack("<QQ", received, value))
        self.transport.close()
        nbytes = received - self.started_at
        cpu = (end.cpu - start.cpu) * 1e6
        mapped = self.counters.get("bytes_mapped", 0)
        self.record = {
            "role": "receiver",
            "kind": self.options.kind,
            "size": self.options.size,
            "bytes": received,
            "measured_bytes": nbytes,
            "seconds": end.wall - start.wall,
            "cpu_us": cpu,
            "cpu_us_per_mb": cpu / nbytes * 1e6,
            "release_us": (released.cpu - end.cpu) * 1e6,
            "mapped": mapped,
            "mapped_share": mapped / received,
            "voluntary": end.voluntary - start.voluntary,
            "involuntary": end.involuntary - start.involuntary,
            "faults": end.faults - start.faults,
            "hash": f"{value:016x}",
            "counters": self.counters,
        }


class _Base(asyncio.BaseProtocol):
    """The ends of a connection, the same for all kinds."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.take = account.take
        self.kept = account.kept
        self.size: int = account.options.size

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.account.connected(transport)

    def eof_received(self) -> bool:
        self.rest()
        self.account.finish()
        return True  # the answer is still to be written

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.account.record = {"error": f"the connection was lost: {exc!r}"}
        self.account.closed.set_result(None)

    def rest(self) -> None:
        """Takes what has come and waits for the end of its message."""


class Reused(_Base, asyncio.BufferedProtocol):
    """One buffer; what comes is used at once."""

    def __init__(self, account: Account, view: memoryview) -> None:
        super().__init__(account)
        self.view = view

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.view

    def buffer_updated(self, nbytes: int) -> None:
        self.take(self.view[:nbytes])


class Fresh(_Base, asyncio.BufferedProtocol):
    """A fresh buffer for each message; used when it is whole, and kept."""

    def __init__(self, account: Account, new: Callable[[int], Any]) -> None:
        super().__init__(account)
        self.new = new
        self.begin()

    def begin(self) -> None:
        self.buffer = self.new(self.size)
        self.view = memoryview(self.buffer)
        self.filled = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.view[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.filled += nbytes
        if self.filled == self.size:
            self.take(self.view)
            self.kept.append(self.buffer)
            self.begin()

    def rest(self) -> None:
        self.take(self.view[: self.filled])


class _Pages(Reused):
    """Both halves of a `PagesProtocol`: views, let go at once, and what comes by the buffer."""

    def pages_received(self, view: memoryview) -> None:
        self.take(view)


class _PagesKeep(_Base):
    """The same, everything kept."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self.begin()

    def begin(self) -> None:
        self.view = memoryview(bytearray(KEPT_BLOCK))
        self.filled = 0

    def pages_received(self, view: memoryview) -> None:
        self.take(view)
        self.kept.append(view)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.view[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        start = self.filled
        self.filled += nbytes
        self.take(self.view[start : self.filled])
        if self.filled == KEPT_BLOCK:
            self.kept.append(self.view)
            self.begin()


def _shifted(nbytes: int) -> memoryview:
    """A fresh bytearray's memory from its next cache line on.

    A large bytearray's data begins 16 bytes into a page (malloc's header). Some processors
    (AMD Zen among them) copy several times slower where source and destination differ by
    less than 32 bytes modulo the page, and the kernel's source begins at a page.
    """
    return memoryview(bytearray(nbytes + 48))[48:]


def _make(account: Account) -> asyncio.BaseProtocol:
    """The protocol of `options.kind`. zcloop's names are looked up only where a kind needs them."""
    kind, size = account.options.kind, account.options.size
    if kind == "reused":
        return Reused(account, memoryview(bytearray(size)))
    if kind == "reused-aligned":
        return Reused(account, memoryview(mmap.mmap(-1, size)))
    if kind == "fresh":
        return Fresh(account, bytearray)
    if kind == "fresh-shifted":
        return Fresh(account, _shifted)
    import zcloop
    base: Any = zcloop.PagesProtocol
    if kind == "pages":
        protocol: Any = type("Pages", (_Pages, base), {})
        return cast(asyncio.BaseProtocol, protocol(account, memoryview(bytearray(size))))
    if kind == "pages-keep":
        protocol = type("PagesKeep", (_PagesKeep, base), {})
        return cast(asyncio.BaseProtocol, protocol(account))
    page_buffer: Any = zcloop.PageBuffer
    if kind == "pagebuffer":
        return Reused(account, memoryview(page_buffer(size)))
    if kind == "pagebuffer-keep":
        return Fresh(account, page_buffer)
    return Fresh(account, lambda nbytes: page_buffer(nbytes, exact=True))


async def _read(account: Account, reader: Any, writer: asyncio.StreamWriter) -> None:
    """The kinds that read messages from a stream."""
    kind, size = account.options.kind, account.options.size
    read = reader.readview if kind.startswith("readview") else reader.readexactly
    keep = kind.endswith("-keep")
    account.connected(writer.transport)
    try:
        while True:
            data = await read(size)
            account.take(data)
            if keep:
                account.kept.append(data)
            del data
    except asyncio.IncompleteReadError as end:
        account.take(end.partial)
        account.finish()
        await writer.wait_closed()
    except OSError as exc:
        account.record = {"error": f"the connection was lost: {exc!r}"}
    finally:
        account.closed.set_result(None)


PROTOCOLS = (
    *("reused", "reused-aligned", "fresh", "fresh-shifted", "pages", "pages-keep"),
    *("pagebuffer", "pagebuffer-keep", "pagebuffer-exact"),
)
STREAMS = ("streams", "streams-keep", "readview", "readview-keep")


def _listen(options: argparse.Namespace) -> socket.socket:
    """Bound, with what must be set before a connection is made."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if options.mss:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, options.mss)
    sock.bind((options.host, 0))
    return sock


async def _receive(options: argparse.Namespace) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    account = Account(options)
    sock = _listen(options)
    server: Any
    if options.kind in STREAMS:
        server = await asyncio.start_server(partial(_read, account), sock=sock)
    else:
        protocol = _make(account)  # before a peer comes: zcloop's names may be missing
        server = await loop.create_server(lambda: protocol, sock=sock)
    print(json.dumps({"port": sock.getsockname()[1]}), flush=True)
    await account.closed
    server.close()
    return account.record


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.receive.receiver")
    parser.add_argument("--loop", required=True, help="module:factory")
    parser.add_argument("--kind", required=True, choices=sorted(PROTOCOLS + STREAMS))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--library", required=True, help="the module zcref_hash")
    parser.add_argument("--hash", action="store_true", help="hash every byte")
    for name in ("size", "header", "answer", "warmup", "mss", "lowat"):
        parser.add_argument(f"--{name}", type=int, default=0)
    options = parser.parse_args(arguments)
    signal.alarm(LIFE_SECONDS)
    with asyncio.Runner(loop_factory=loop_factory(options.loop)) as runner:
        record = runner.run(_receive(options))
    print(json.dumps(record), flush=True)
