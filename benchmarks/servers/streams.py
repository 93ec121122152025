"""Servers on streams: what an ``asyncio.start_server`` program does with its reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from .pattern import LINE_BYTES, LINES_PER_BLOCK, Checker, pattern

READ_BYTES = 65536
# One line in so many is read as a number: looking at each would cost as much as `readline` does.
CHECK_LINES = 1021

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _serve(handler: Handler) -> asyncio.Server:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except ConnectionError:
            pass  # the load generator has closed its end
        finally:
            writer.close()

    return await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)


async def serve_echo(size: int) -> asyncio.Server:
    """Echoes whatever there is."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()

    return await _serve(handler)


async def serve_reqresp(size: int) -> asyncio.Server:
    """Requests of a known size, answered with as many bytes."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                request = await reader.readexactly(size)
            except asyncio.IncompleteReadError:
                return
            writer.write(request)
            await writer.drain()

    return await _serve(handler)


async def _finish(
    checker: Checker, end: asyncio.IncompleteReadError, writer: asyncio.StreamWriter
) -> None:
    if end.partial:
        checker.take(end.partial)
    writer.write(checker.answer())
    await writer.drain()


async def serve_readexactly(size: int) -> asyncio.Server:
    """Each block is used and let go before the next is asked for."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        checker = Checker()
        try:
            while True:
                checker.take(await reader.readexactly(size))
        except asyncio.IncompleteReadError as end:
            await _finish(checker, end, writer)

    return await _serve(handler)


async def serve_readexactly_kept(size: int) -> asyncio.Server:
    """The same with the block in a variable, so that it lives until the next one is there.

    Worth a case of its own: the block that is still there keeps glibc from giving the top of the
    heap back to the system, and with it go most of the page faults.
    """

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        checker = Checker()
        try:
            while True:
                data = await reader.readexactly(size)
                checker.take(data)
        except asyncio.IncompleteReadError as end:
            await _finish(checker, end, writer)

    return await _serve(handler)


async def serve_read(size: int) -> asyncio.Server:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        checker = Checker()
        while data := await reader.read(size):
            checker.feed(data[0], len(data))
        writer.write(checker.answer())
        await writer.drain()

    return await _serve(handler)


async def serve_readline(size: int) -> asyncio.Server:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        checker = Checker()
        count = 0
        while line := await reader.readline():
            due = count % CHECK_LINES == 0
            if len(line) != LINE_BYTES or (due and int(line[:16], 16) != count % LINES_PER_BLOCK):
                checker.wrong += 1
            count += 1
            checker.received += len(line)
        writer.write(checker.answer())
        await writer.drain()

    return await _serve(handler)


async def serve_source(size: int) -> asyncio.Server:
    piece = pattern(size)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(piece)
            await writer.drain()

    return await _serve(handler)
