"""A request's body into a file: received by the loop, written by a thread.

Writing blocks when the disk is behind, so the loop must not do it.  Handing each small
piece to a thread would cost more than the write, so a thread gets about 1 MiB at a time.
While it writes, what comes waits in the kernel's receive buffer.

This is the one place where the application does something for zcloop: there, the body
comes by ``zcloop.contrib.aiohttp.iter_body``, into memory that is used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Sequence
from typing import BinaryIO

from aiohttp import web

from ..contrib.aiohttp import iter_body
from ..loop import EventLoop
from .storage import TooLarge

__all__ = ["receive"]

_BATCH = 1 << 20
_IOV_MAX = 1024

_Buffer = bytes | memoryview


async def receive(request: web.Request, file: BinaryIO, most: int) -> int:
    """Write the body to ``file``; returns its length.

    Raises :exc:`TooLarge` when it is longer than ``most`` bytes, the file's
    :exc:`OSError`, and what aiohttp raises when the client is gone.  Nothing
    writes to the file any more when this returns or raises.
    """
    loop = asyncio.get_running_loop()
    total = 0
    async with contextlib.aclosing(_batches(request)) as batches:
        async for batch in batches:
            total += sum(map(len, batch))
            if total > most:
                raise TooLarge
            writing = loop.run_in_executor(None, _write, file, batch)
            try:
                await asyncio.shield(writing)  # a cancelled future would leave the thread behind
            finally:
                await asyncio.wait([writing])
    return total


async def _batches(request: web.Request) -> AsyncGenerator[list[_Buffer], None]:
    """The body, about _BATCH bytes at a time; a batch is lent until the next is asked for."""
    if isinstance(asyncio.get_running_loop(), EventLoop):
        async for view in iter_body(request, _BATCH):
            yield [view]
        return
    batch: list[_Buffer] = []
    held = 0
    content = request.content
    while not content.at_eof():  # iter_chunks() never ends on an empty body but the first
        piece, _ = await content.readchunk()
        batch.append(piece)
        held += len(piece)
        if held >= _BATCH:
            yield batch
            batch, held = [], 0
    yield batch


def _write(file: BinaryIO, batch: Sequence[_Buffer]) -> None:
    fd = file.fileno()
    left = [piece for piece in batch if piece]
    while left:
        written = os.writev(fd, left[:_IOV_MAX])
        done = 0
        while done < len(left) and written >= len(left[done]):
            written -= len(left[done])
            done += 1
        del left[:done]
        if written:
            left[0] = left[0][written:]
