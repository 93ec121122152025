"""What is measured of aiohttp, on which sides, and the targets."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import replace

from ..cases import MIB, PAIR, Case, _args, with_malloc
from ..servers.pattern import pattern
from ..sides import SIDES as LOOPS
from ..sides import Side
from ..targets import Target

UPLOAD = DOWNLOAD = 64 * MIB
STATIC = 256 * MIB
MESSAGE = MIB
JSON = '{"message": "Hello, World!"}'

SIDES = {
    name: LOOPS[name] for name in ("asyncio", "uvloop", "rloop", "zcloop", "zcloop:nopoll")
} | {
    side.name: side
    for side in (
        # The same loops, and another way for the handler to take the body.
        Side("uvloop:read", "uvloop:new_event_loop", {"BENCH_READER": "read"}),
        Side("zcloop:read", "zcloop:new_event_loop", {"BENCH_READER": "read"}),
        Side("zcloop:iter_body", "zcloop:new_event_loop", {"BENCH_READER": "iter"}),
        Side("zcloop:tune_malloc", "zcloop:new_event_loop", {"ZCLOOP_TUNE_MALLOC": "1"}),
        Side("zcloop:read_body_into", "zcloop:new_event_loop", {"BENCH_READER": "into"}),
    )
}
READERS = (*PAIR, "uvloop:read", "zcloop:iter_body", "zcloop:read_body_into")


def _case(name: str, server: str, unit: str, room: int = 0, **load: float | str) -> Case:
    mode = "websocket" if server == "websocket" else "http"
    return Case(
        f"aiohttp/{name}",
        f"benchmarks.aiohttp.servers:{server}",
        _args(mode, **load),
        unit=unit,
        size=room,
        sides=PAIR,
    )


def _uploads(upload: int) -> list[Case]:
    body = pattern(upload)
    answers = {
        "sha256": hashlib.sha256(body).hexdigest(),
        "crc32": f"{zlib.crc32(body):08x}",
        "none": f"{upload} 0",
    }
    cases = [
        replace(
            _case(f"upload/64m/{name}", "upload", "upload", upload, upload=upload, expect=answer),
            sides=READERS,
            env=(("BENCH_HASH", name),),
        )
        for name, answer in answers.items()
    ]
    return cases + [replace(with_malloc(c), env=c.env + with_malloc(c).env) for c in cases]


def all_cases(shrink: int = 1) -> list[Case]:
    """One request in flight on each connection; one connection, but for the small responses.

    `shrink` divides the sizes of the large ones, for tests.
    """
    download, static = DOWNLOAD // shrink, STATIC // shrink
    websocket = _case("websocket/1m", "websocket", "message", MESSAGE, size=MESSAGE)
    return [
        _case("hello/c64", "hello", "request", connections=64, priming=2, expect="Hello, World!"),
        _case("json/c64", "json", "request", connections=64, priming=2, expect=JSON),
        _case("json/c64/burst", "json", "request", connections=64, expect=JSON),
        *_uploads(UPLOAD // shrink),
        _case("download/64m", "download", "download", download, download=download),
        replace(
            _case("static/256m", "static", "download", download=static, period=MIB),
            file_bytes=static,
        ),
        replace(websocket, sides=(*PAIR, "zcloop:tune_malloc")),
        with_malloc(websocket),
    ]


def _uploaded(name: str) -> list[Target]:
    return [
        Target(f"aiohttp/upload/64m/{name}", "cpu", "<=", 0.70, side=side)
        for side in ("zcloop:iter_body", "zcloop:read_body_into")
    ]


TARGETS = (
    Target("aiohttp/hello/c64", "rate", ">=", 1.00),
    Target("aiohttp/json/c64", "rate", ">=", 1.00),
    *_uploaded("sha256"),
    *_uploaded("none"),
    Target("aiohttp/download/64m", "cpu", "<=", 1.00),
    Target("aiohttp/static/256m", "cpu", "<=", 0.60),
    Target("aiohttp/websocket/1m", "cpu", "<=", 1.00),
)
