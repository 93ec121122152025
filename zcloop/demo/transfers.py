"""Handlers that move much data: upload, download through the application, static file."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncGenerator
from typing import BinaryIO
from urllib.parse import quote

import aiohttp
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from .body import receive
from .guard import problem
from .state import STATE, State
from .storage import NoRoom, StoredFile, TooLarge, clean_name

__all__ = ["download", "static", "upload"]

_READ = 1 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


async def upload(request: web.Request) -> web.Response:
    """The raw body becomes a file; answers with its description and the transfer's figures."""
    state = request.app[STATE]
    assert request.transport is not None
    transfer = state.meter.begin("upload", request.transport)
    try:
        state.storage.check_room(request.content_length or 0)
        new, file = state.storage.create()
        try:
            with file:
                size = await receive(request, file, state.storage.max_size)
            figures = state.meter.end(transfer, size)
            kept = state.storage.keep(new, request.query.get("name", ""), size)
        except BaseException:
            state.storage.discard(new)
            raise
    except TooLarge:
        return problem(413, f"The file is too large: at most {state.storage.max_size} bytes.")
    except NoRoom as exc:
        return problem(507, str(exc))
    except (ConnectionError, aiohttp.ClientError, web.RequestPayloadError):
        return problem(400, "The upload was broken off.")  # for nobody: the client is gone
    except OSError as exc:
        if exc.errno in _DISK_FULL:
            return problem(507, "The server's disk is full.")
        return problem(500, f"The server can't store the file: {exc.strerror}.")
    finally:
        state.meter.drop(transfer)
    if figures is not None:
        state.storage.remember(figures)
    return web.json_response({"file": kept.describe(), "figures": figures}, status=201)


async def download(request: web.Request) -> web.StreamResponse:
    """A file, read by a thread and written by this handler."""
    state = request.app[STATE]
    stored = find(state, request)
    response = web.StreamResponse(headers=_headers(stored))
    response.content_length = stored.size
    assert request.transport is not None
    transfer = state.meter.begin("download", request.transport)
    try:
        await response.prepare(request)
        if request.method != "HEAD":
            with stored.path.open("rb", buffering=0) as file:
                async with contextlib.aclosing(_chunks(file, stored.size)) as chunks:
                    async for chunk in chunks:
                        await response.write(chunk)
            await response.write_eof()
            _remember(state, request, state.meter.end(transfer, stored.size))
    finally:
        state.meter.drop(transfer)
    return response


async def _chunks(file: BinaryIO, size: int) -> AsyncGenerator[bytes, None]:
    """The file's bytes; the next chunk is read while this one is used."""
    loop = asyncio.get_running_loop()
    fd = file.fileno()
    ahead = loop.run_in_executor(None, os.pread, fd, _READ, 0)
    try:
        for offset in range(_READ, size + _READ, _READ):
            chunk = await asyncio.shield(ahead)  # a cancelled future would leave the thread behind
            if offset < size:
                ahead = loop.run_in_executor(None, os.pread, fd, _READ, offset)
            yield chunk
    finally:
        await asyncio.wait([ahead])  # the file is about to be closed


async def static(request: web.Request) -> web.StreamResponse:
    """The same file by aiohttp's FileResponse, which uses ``loop.sendfile`` where there is one."""
    stored = find(request.app[STATE], request)
    return _MeasuredFile(stored.path, headers=_headers(stored))


class _MeasuredFile(web.FileResponse):
    """A FileResponse sends while it is prepared, which is after the handler."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        assert isinstance(request, web.Request) and request.transport is not None
        state = request.app[STATE]
        transfer = state.meter.begin("static", request.transport)
        try:
            writer = await super().prepare(request)
            if request.method != "HEAD" and self.status == 200:
                _remember(state, request, state.meter.end(transfer, self.content_length or 0))
        finally:
            state.meter.drop(transfer)
        return writer


def find(state: State, request: web.Request) -> StoredFile:
    """The file that the request's path names; :exc:`aiohttp.web.HTTPNotFound` if there is none."""
    try:
        return state.storage.files[request.match_info["id"]]
    except KeyError:
        raise web.HTTPNotFound from None


def _headers(stored: StoredFile) -> dict[str, str]:
    # Never shown by the browser, whatever it is: it is somebody else's.
    name = clean_name(stored.name)
    plain = name.encode("ascii", "replace").decode().replace('"', "'").replace("?", "_")
    encoded = quote(name, safe="")
    return {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}",
    }


def _remember(state: State, request: web.Request, figures: dict[str, object] | None) -> None:
    """Keep a download's figures, unless the page says that it read slowly on purpose."""
    if figures is not None and request.query.get("measure") != "no":
        state.storage.remember(figures)
