"""Servers on protocols: echo, sink (receives a stream) and source (sends one)."""

from __future__ import annotations

import asyncio
from typing import cast

from .pattern import Checker, pattern

SINK_BUFFER = 1 << 20
ECHO_BUFFER = 64 << 10


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class EchoBuffered(asyncio.BufferedProtocol):
    """One buffer per connection; the answer is a ``bytes``: the buffer is filled again at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.buffer = bytearray(ECHO_BUFFER)
        self.view = memoryview(self.buffer)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.view

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(bytes(self.view[:nbytes]))


class Sink(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.checker = Checker()

    def data_received(self, data: bytes) -> None:
        self.checker.feed(data[0], len(data))

    def eof_received(self) -> None:
        self.transport.write(self.checker.answer())


class SinkBuffered(asyncio.BufferedProtocol):
    """Receives into one buffer of 1 MiB, used again and again."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.checker = Checker()
        self.buffer = bytearray(SINK_BUFFER)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.checker.feed(self.buffer[0], nbytes)

    def eof_received(self) -> None:
        self.transport.write(self.checker.answer())


class Source(asyncio.Protocol):
    """Writes the same ``bytes`` as long as the transport takes it."""

    def __init__(self, piece: bytes) -> None:
        self.piece = piece

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.loop = asyncio.get_running_loop()
        self.paused = False
        self.write_some()

    def connection_lost(self, exc: Exception | None) -> None:
        self.paused = True

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.write_some()

    def write_some(self) -> None:
        """Until the transport says stop; but the loop gets its turn after each write."""
        if not self.paused:
            self.transport.write(self.piece)
            if not self.paused:
                self.loop.call_soon(self.write_some)


async def serve_echo(size: int) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=1024)


async def serve_echo_buffered(size: int) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(
        EchoBuffered, "127.0.0.1", 0, backlog=1024
    )


async def serve_sink(size: int) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0, backlog=1024)


async def serve_sink_buffered(size: int) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(
        SinkBuffered, "127.0.0.1", 0, backlog=1024
    )


async def serve_source(size: int) -> asyncio.Server:
    piece = pattern(size)
    return await asyncio.get_running_loop().create_server(
        lambda: Source(piece), "127.0.0.1", 0, backlog=1024
    )
