"""The application: the page, what it asks for, and the files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
from pathlib import Path
from typing import Any

from aiohttp import web

from .guard import add_headers, guard, problem
from .options import LOOPS
from .state import STATE, State
from .storage import RESERVE
from .transfers import download, find, static, upload

__all__ = ["make_app"]

_SETTLE = 1.0  # seconds
_PAGE = Path(__file__).with_name("static")
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def make_app(state: State, host: str) -> web.Application:
    """The application of one worker, which listens on ``host``."""
    app = web.Application(middlewares=[guard(host)], client_max_size=4096)
    app[STATE] = state
    app.on_response_prepare.append(add_headers)
    app.on_shutdown.append(_end_feed)
    app.add_routes(
        [
            web.get("/api/state", _state),
            web.get("/api/events", _events),
            web.post("/api/loop", _switch),
            web.put("/api/files", upload),
            web.delete("/api/files/{id}", _delete),
            web.get("/api/files/{id}/digests", _digests),
            web.get("/files/{id}", download),
            web.get("/static/{id}", static),
        ]
    )
    # The page's own files by name, so that no request's path is ever a path on disk.
    for path in _PAGE.iterdir():
        if path.suffix in _TYPES:
            name = "" if path.name == "index.html" else path.name
            app.router.add_get(f"/{name}", _page_file(path))
    return app


def _page_file(path: Path) -> Any:
    content, kind = path.read_bytes(), _TYPES[path.suffix]

    async def serve(request: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8")

    return serve


def _describe(state: State) -> dict[str, Any]:
    return {
        "loop": state.loop_name,
        "loops": LOOPS,
        "generation": state.generation,
        "python": platform.python_version(),
        "max_size": state.storage.max_size,
        "reserve": RESERVE,
        "files": [file.describe() for file in state.storage.files.values()],
        "results": state.storage.results(),
    }


async def _state(request: web.Request) -> web.Response:
    return web.json_response(_describe(request.app[STATE]))


async def _events(request: web.Request) -> web.StreamResponse:
    """Server-sent events: ``hello`` with the state of now, then a ``sample`` at each interval."""
    state = request.app[STATE]
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    try:
        await _send_event(response, "hello", _describe(state))
        async with contextlib.aclosing(state.feed.watch()) as samples:
            async for sample in samples:
                await _send_event(response, "sample", sample)
    except ConnectionError:
        pass  # the page was closed
    return response


async def _send_event(response: web.StreamResponse, name: str, content: object) -> None:
    await response.write(f"event: {name}\ndata: {json.dumps(content)}\n\n".encode())


async def _end_feed(app: web.Application) -> None:
    app[STATE].feed.close()


async def _switch(request: web.Request) -> web.Response:
    """Ask the parent to start the application again, on the loop that the body names."""
    state = request.app[STATE]
    try:
        wanted = (await request.json())["loop"]
    except (ValueError, KeyError, TypeError):
        wanted = None
    if wanted not in LOOPS:
        return problem(400, f"There is no such loop; there are {', '.join(LOOPS)}.")
    try:
        # A client that has its last byte may be here before our side of the transfer has ended.
        async with asyncio.timeout(_SETTLE):
            await state.meter.idle.wait()
    except TimeoutError:
        return problem(409, "A transfer is running; switch the loop when it has ended.")
    state.switch(wanted)
    return web.json_response({"loop": wanted, "generation": state.generation}, status=202)


async def _delete(request: web.Request) -> web.Response:
    state = request.app[STATE]
    state.storage.discard(find(state, request).id)
    return web.Response(status=204)


async def _digests(request: web.Request) -> web.Response:
    state = request.app[STATE]
    stored = find(state, request)
    loop = asyncio.get_running_loop()
    return web.json_response(await loop.run_in_executor(None, state.storage.digests, stored))
