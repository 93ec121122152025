"""aiohttp on zcloop: ``run_app``, and large request bodies without the copies of aiohttp's path.

aiohttp is imported when one of these functions is called first.  How a body gets past
aiohttp's parser is in ``body.py``.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..loop import EventLoop
from .body import take_over
from .memory import Piece, new_result, view_of

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["iter_body", "read_body_into", "read_body_view", "run_app"]

_PIECE = 2 * 1024 * 1024
"""A body of 64 MiB that is hashed costs 0.66 of aiohttp's usual way on uvloop with such pieces,
0.71 with half as much, 0.75 with 512 KiB, 0.99 with 256 KiB, and 0.69 with twice as much."""

_BURST = 1024 * 1024
"""Bytes that an iteration hands out without waiting before it lets the loop run once."""


def _web() -> Any:
    try:
        return importlib.import_module("aiohttp.web")
    except ImportError as exc:
        raise ImportError(
            "zcloop.contrib.aiohttp needs aiohttp 3.10 or newer: pip install aiohttp"
        ) from exc


def run_app(
    app: web.Application | Awaitable[web.Application],
    *,
    config: Config | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
    **arguments: Any,
) -> None:
    """``aiohttp.web.run_app``, with its arguments and behaviour, on a new zcloop loop.

    ``config`` is that of the loop.  A ``loop`` that is given is used as it is.  Raises
    :exc:`TypeError` for both of them, :exc:`ImportError` without aiohttp, and what aiohttp
    raises.
    """
    run = _web().run_app
    if loop is not None:
        if config is not None:
            raise TypeError("run_app() takes config= or loop=, not both")
        run(app, loop=loop, **arguments)
        return
    own = EventLoop(config)
    try:
        run(app, loop=own, **arguments)
    finally:
        if not own.is_closed():  # an argument that aiohttp doesn't know
            own.close()


def _byte_view(buf: Any) -> memoryview:
    view = memoryview(buf).cast("B")
    if view.readonly:
        raise TypeError("a writable buffer is required")
    return view


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise _web().HTTPRequestEntityTooLarge(max_size=limit, actual_size=size)


async def read_body_into(request: web.BaseRequest, buf: Any) -> int:
    """Read the rest of a request's body into ``buf``; returns its size in bytes.

    ``buf`` is a writable, contiguous buffer (``bytearray``, ``mmap``, an array), at least as
    large as the body.  On a zcloop loop a body with a Content-Length is received straight into
    it; any other, and any on another loop, is copied there from what aiohttp's parser gives.

    Raises ``aiohttp.web.HTTPRequestEntityTooLarge`` (413) for a body that is larger than the
    application's ``client_max_size`` or than ``buf``: before anything is read where the
    Content-Length says so.  Raises :exc:`TypeError` for a buffer that is read-only or not
    contiguous, :exc:`RuntimeError` while another coroutine reads, and what aiohttp's own
    ``request.read()`` raises when the client goes away.

    What it has read is read: a second call returns 0, and a call after one that was cancelled
    returns what came later.  After ``request.read()`` it copies what that has kept.
    """
    with _byte_view(buf) as view:
        kept = getattr(request, "_read_bytes", None)
        if kept is None:
            return await _read_into(request, view)
        _check(len(kept), len(view))
        view[: len(kept)] = kept
        return len(kept)


async def _read_into(request: web.BaseRequest, view: memoryview) -> int:
    payload = request.content
    limit = request.client_max_size or sys.maxsize
    if request.content_length and not payload.at_eof():
        _check(request.content_length, limit)
    limit = min(limit, len(view))
    at = 0
    while True:
        body = take_over(request)
        chunk = b"" if body is None else body.take_unread()
        if body is not None and not chunk:
            end = at + body.left
            _check(end, limit)
            at = await body.receive(view, at, end)
            if at == end:
                return at
        chunk = chunk or await payload.readany()
        if not chunk:
            return at
        end = at + len(chunk)
        _check(end, limit)
        view[at:end] = chunk
        at = end


async def read_body_view(request: web.BaseRequest) -> memoryview:
    """Read the rest of a request's body; returns it as one read-only view, which may be kept.

    What ``memoryview(await request.read())`` gives, but on a zcloop loop a body with a
    Content-Length is received straight into its memory; where the stream has whole pages and
    ``Config.receive`` allows it, that memory is the kernel's, mapped and not copied.

    Raises like :func:`read_body_into`; nothing is kept for a second call, or for
    ``request.read()``, and what a cancelled call has received is lost, as with the latter.
    """
    kept = getattr(request, "_read_bytes", None)
    if kept is not None:
        return memoryview(kept)
    payload = request.content
    limit = request.client_max_size or sys.maxsize
    if request.content_length and not payload.at_eof():
        _check(request.content_length, limit)
    parts: list[bytes] = []
    have = 0
    while True:
        body = take_over(request)
        chunk = b"" if body is None else body.take_unread()
        if body is not None and not chunk:
            _check(have + body.left, limit)
            result = new_result(request.transport, parts, have, body.left)
            end = await body.receive(result, have, have + body.left)
            view = view_of(result, end)
            if not body.left:
                return view
            parts, have = [bytes(view)], end
        chunk = chunk or await payload.readany()
        if not chunk:
            return memoryview(b"".join(parts))
        parts.append(chunk)
        have += len(chunk)
        _check(have, limit)


class iter_body:
    """Iterate over the rest of a request's body: ``async for view in iter_body(request)``.

    Each ``view`` is a read-only memoryview of at most ``size`` bytes (2 MiB).  It is *released*
    when the next one is asked for: using it then raises :exc:`ValueError`.  A slice of it that is
    kept (``view[:]``, or a NumPy array over it) stays valid for as long as it is kept, and costs
    the iteration new memory.

    On a zcloop loop a body with a Content-Length is received straight into memory that the
    iteration reuses.  A piece is handed out when it is full or ends the body, and when no more
    came for 20 ms.  Anywhere else the pieces are what aiohttp's parser gives, of any size.

    As with ``request.content``, ``client_max_size`` isn't applied.  An iteration may be left
    early, and cancelled: what wasn't handed out is read by whoever reads next, also by
    ``request.content``.  Raises :exc:`ValueError` for a size below 1, and what
    ``request.content`` raises.
    """

    def __init__(self, request: web.BaseRequest, size: int = _PIECE) -> None:
        if size < 1:
            raise ValueError("size must be at least 1")
        self._request = request
        self._piece = Piece(size)
        self._kept = getattr(request, "_read_bytes", None)
        self._burst = 0

    def __aiter__(self) -> iter_body:
        return self

    async def __anext__(self) -> memoryview:
        piece = self._piece
        piece.release()
        if self._kept is not None:
            chunk, self._kept = self._kept, b""
        elif (body := take_over(self._request)) is None:
            chunk = await self._request.content.readany()
        elif not (chunk := body.take_unread()):
            if self._burst >= _BURST:
                self._burst = 0
                await asyncio.sleep(0)
            memory = piece.memory(body.left)
            end = await body.receive(memory, 0, min(len(memory), body.left), partly=True)
            if end:
                self._burst += end
                return piece.lend(end)
            chunk = await self._request.content.readany()  # raises why the stream ended
        if not chunk:
            raise StopAsyncIteration
        return piece.lend_bytes(chunk)
