"""A file server: ``loop.sendfile``, and what HTTP servers do where the loop has none.

The fallback is that of aiohttp's ``FileResponse``: read 256 KiB in an executor thread, write,
drain, until the count is reached.
"""

from __future__ import annotations

import asyncio
import os
import struct
from typing import BinaryIO

CHUNK = 256 << 10


async def _send_by_reading(
    writer: asyncio.StreamWriter, file: BinaryIO, offset: int, count: int
) -> None:
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, file.seek, offset)
    while count > 0:
        chunk = await loop.run_in_executor(None, file.read, min(CHUNK, count))
        if not chunk:
            return
        writer.write(chunk)
        await writer.drain()
        count -= len(chunk)


async def _handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    loop = asyncio.get_running_loop()
    with open(path, "rb") as file:
        while request := await reader.read(8):
            (count,) = struct.unpack("<Q", request)
            try:
                await loop.sendfile(writer.transport, file, 0, count)
            except NotImplementedError:
                await _send_by_reading(writer, file, 0, count)


async def serve_sendfile(size: int) -> asyncio.Server:
    """Each request is a 64-bit count; the answer, that much of the file in BENCH_FILE."""
    path = os.environ["BENCH_FILE"]

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _handle(reader, writer, path)
        except ConnectionError:
            pass  # the load generator has closed its end
        finally:
            writer.close()

    return await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
