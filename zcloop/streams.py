"""Streams: asyncio's, over transports that fill what is read in place.

`open_connection` and `start_server` are for programs that want what is in addition to
asyncio's streams (`StreamReader.readinto`, `readinto_exactly`, `readview`) with types that
say so. On a zcloop loop asyncio's own functions give the same objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .fast_streams import StreamReaderProtocol, StreamWriter
from .reader import StreamReader

__all__ = ["StreamReader", "StreamWriter", "open_connection", "start_server"]

_DEFAULT_LIMIT = 2**16


async def open_connection(
    host: str | None = None, port: int | None = None, *, limit: int = _DEFAULT_LIMIT, **kwds: Any
) -> tuple[StreamReader, StreamWriter]:
    """Connect; a (reader, writer) pair. Like `asyncio.open_connection`, with the same arguments.

    `limit` (bytes) is the reader's; everything else goes to ``loop.create_connection``,
    which also says what is raised. Works on any event loop; results are filled in place on
    a zcloop one.
    """
    loop = asyncio.get_running_loop()
    reader = StreamReader(limit=limit, loop=loop)
    protocol = StreamReaderProtocol(reader, loop=loop)
    where: Any = (host, port)
    transport, _ = await loop.create_connection(lambda: protocol, *where, **kwds)
    return reader, StreamWriter(transport, protocol, reader, loop)


async def start_server(
    client_connected_cb: Callable[[StreamReader, StreamWriter], Any],
    host: Any = None,
    port: int | None = None,
    *,
    limit: int = _DEFAULT_LIMIT,
    **kwds: Any,
) -> asyncio.base_events.Server:
    """Serve; like `asyncio.start_server`, with the same arguments.

    `client_connected_cb` is called with a reader and a writer for every connection; if it is
    a coroutine function it runs as a task. `limit` (bytes) is the readers'; everything else
    goes to ``loop.create_server``, which also says what is raised.
    """
    loop = asyncio.get_running_loop()

    def factory() -> StreamReaderProtocol:
        reader = StreamReader(limit=limit, loop=loop)
        callback: Any = client_connected_cb
        return StreamReaderProtocol(reader, callback, loop=loop)

    return await loop.create_server(factory, host, port, **kwds)
