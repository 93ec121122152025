"""The applications, one for each kind of case; the loop below them is all that differs.

Except where a body is uploaded: ``BENCH_READER`` says how the handler takes it.

=====  =======================================================================
any    aiohttp's usual way to stream: ``request.content.iter_any()``
read   aiohttp's usual way to have it whole: ``await request.read()``
iter   ``zcloop.contrib.aiohttp.iter_body``
into   ``zcloop.contrib.aiohttp.read_body_into``, one buffer for all requests
=====  =======================================================================

``BENCH_HASH`` says what is done with it: ``sha256``, ``crc32``, or ``none``, which looks at the
first byte of each piece, as the bulk servers do.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiohttp import WSMsgType, web

from zcloop.contrib.aiohttp import iter_body, read_body_into

from ..servers.pattern import Checker, pattern

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LIMIT = 1 << 31


class Digest(Protocol):
    """What becomes of a body; `text` is the response."""

    def update(self, data: Any, /) -> None: ...

    def text(self) -> str: ...


class Sha256:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.update = self._hash.update

    def text(self) -> str:
        return self._hash.hexdigest()


class Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Any) -> None:
        self._value = zlib.crc32(data, self._value)

    def text(self) -> str:
        return f"{self._value:08x}"


class Look:
    def __init__(self) -> None:
        self._checker = Checker()
        self.update = self._checker.take

    def text(self) -> str:
        return f"{self._checker.received} {self._checker.wrong}"


DIGESTS: dict[str, Callable[[], Digest]] = {"sha256": Sha256, "crc32": Crc32, "none": Look}


async def _serve(handler: Handler) -> asyncio.Server:
    app = web.Application(client_max_size=LIMIT)
    app.router.add_route("*", "/", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    assert runner.server is not None
    loop = asyncio.get_running_loop()
    return await loop.create_server(runner.server, "127.0.0.1", 0, backlog=1024)


async def hello(size: int) -> asyncio.Server:
    """A short text."""

    async def handler(request: web.Request) -> web.Response:
        return web.Response(text="Hello, World!")

    return await _serve(handler)


async def json(size: int) -> asyncio.Server:
    """A small object."""

    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"message": "Hello, World!"})

    return await _serve(handler)


async def upload(size: int) -> asyncio.Server:
    """Answers a body of at most `size` bytes with its digest."""
    make = DIGESTS[os.environ["BENCH_HASH"]]

    async def by_any(request: web.Request) -> web.Response:
        digest = make()
        async for chunk in request.content.iter_any():
            digest.update(chunk)
        return web.Response(text=digest.text())

    async def by_read(request: web.Request) -> web.Response:
        digest = make()
        digest.update(await request.read())
        return web.Response(text=digest.text())

    async def by_iter(request: web.Request) -> web.Response:
        digest = make()
        async for view in iter_body(request):
            digest.update(view)
        return web.Response(text=digest.text())

    buf = memoryview(bytearray(size if os.environ.get("BENCH_READER") == "into" else 0))

    async def by_into(request: web.Request) -> web.Response:
        digest = make()
        digest.update(buf[: await read_body_into(request, buf)])
        return web.Response(text=digest.text())

    readers = {"any": by_any, "read": by_read, "iter": by_iter, "into": by_into}
    return await _serve(readers[os.environ.get("BENCH_READER", "any")])


async def download(size: int) -> asyncio.Server:
    """A `bytes` body of `size` bytes."""
    body = pattern(size)

    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=body)

    return await _serve(handler)


async def static(size: int) -> asyncio.Server:
    """The file in BENCH_FILE."""
    path = os.environ["BENCH_FILE"]

    async def handler(request: web.Request) -> web.FileResponse:
        return web.FileResponse(path)

    return await _serve(handler)


async def websocket(size: int) -> asyncio.Server:
    """Sends each binary message of at most `size` bytes back."""

    async def handler(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=2 * size, compress=False)
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
        return socket

    return await _serve(handler)
