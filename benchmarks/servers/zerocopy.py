"""Servers of the zero-copy cases. They listen on BENCH_HOST, which may be in another network
namespace than the load generator's."""

from __future__ import annotations

import asyncio
import os
from typing import cast

from .pattern import pattern
from .protocols import Source

MESSAGE_BYTES = 64
EVERY = 8
"""Answers between two large pieces."""


class Mixed(asyncio.Protocol):
    """Answers each message with itself, and sends a large piece after every EVERY answers."""

    def __init__(self, piece: bytes) -> None:
        self.piece = piece
        self.incoming = b""
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.incoming += data
        while len(self.incoming) >= MESSAGE_BYTES:
            self.transport.write(self.incoming[:MESSAGE_BYTES])
            self.incoming = self.incoming[MESSAGE_BYTES:]
            self.answers += 1
            if self.answers % EVERY == 0:
                self.transport.write(self.piece)


async def serve_source(size: int) -> asyncio.Server:
    piece = pattern(size)
    return await asyncio.get_running_loop().create_server(
        lambda: Source(piece), os.environ["BENCH_HOST"], 0
    )


async def serve_mixed(size: int) -> asyncio.Server:
    piece = pattern(size)
    return await asyncio.get_running_loop().create_server(
        lambda: Mixed(piece), os.environ["BENCH_HOST"], 0
    )
