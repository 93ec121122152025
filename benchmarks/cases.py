"""The matrix: what is measured, on which sides.

A case's id is its path: ``echo/protocol/1024/c16`` is the echo of 1,024-byte messages on 16
connections with a `Protocol`. The suffix ``/malloc`` is the allocator control: the same case with
glibc told to keep its memory on every server, which takes the page faults of freed and mapped
buffers out of the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

GIB = 1 << 30
MIB = 1 << 20
MALLOC_ENV = {
    "MALLOC_MMAP_THRESHOLD_": "67108864",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
}
LOOPS = ("asyncio", "uvloop", "rloop", "aiofastnet", "zcloop")
PAIR = ("uvloop", "zcloop")


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    `unit` and `unit_size` say what rate and CPU are counted in: the load generator's units (or
    bytes, in bulk) divided by `unit_size`. `load` holds the load generator's arguments.
    """

    id: str
    kind: str
    load: tuple[str, ...]
    unit: str = "request"
    unit_size: int = 1
    size: int = 0
    server_args: tuple[str, ...] = ()
    sides: tuple[str, ...] = LOOPS
    env: tuple[tuple[str, str], ...] = ()
    file_bytes: int = 0
    # Whether server and load generator have a CPU each; otherwise the scheduler places them.
    pinned: bool = True
    # One sample lasts as long as its work does, whatever --seconds says.
    fixed_work: bool = False

    @property
    def bulk(self) -> bool:
        return self.unit == "GiB"


def _args(mode: str, **options: float | str) -> tuple[str, ...]:
    pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in options.items())
    return (mode, *(word for pair in pairs for word in pair))


def with_malloc(case: Case) -> Case:
    return replace(case, id=case.id + "/malloc", env=tuple(MALLOC_ENV.items()))


def _echo(kind: str, size: int, connections: int) -> Case:
    sides = [*LOOPS]
    if connections == 1:
        sides.append("zcloop:nopoll")
    if kind == "protocol":
        sides.append("c-epoll")
    return Case(
        id=f"echo/{kind}/{size}/c{connections}",
        kind=f"echo-{kind}",
        load=_args("echo", size=size, connections=connections),
        sides=tuple(sides),
    )


def _echoes() -> list[Case]:
    cases = [
        _echo(kind, size, connections)
        for kind in ("protocol", "buffered", "streams")
        for size in (64, 1024, 32768)
        for connections in (1, 16, 64)
    ]
    cases += [with_malloc(case) for case in cases]
    # A thread that computes beside the loop takes the interpreter at every chance; on one CPU with
    # the loop's thread it hardly gets one, so the case is the one that is not pinned.
    thread = replace(
        _echo("buffered", 1024, 16),
        id="echo/protocol/1024/c16/thread",
        kind="echo-protocol",
        server_args=("--cpu-thread",),
        pinned=False,
    )
    cases += [thread, replace(thread, id=thread.id + "/pinned", pinned=True)]
    # 500 requests a second: a loop that polls while it waits would show here in CPU per request.
    slow = _args("echo", size=1024, interval_us=2000)
    alone = _echo("protocol", 1024, 1)
    cases.append(replace(alone, id="echo/protocol/1024/c1/slow", load=slow))
    # The scheduler often puts the two ends of one busy connection on one CPU, which then never
    # sleeps between messages.
    cases.append(replace(alone, id="echo/protocol/1024/c1/unpinned", pinned=False))
    return cases


def _bulk() -> list[Case]:
    def case(name: str, kind: str, mode: str, piece: int, **load: float) -> Case:
        return Case(name, kind, _args(mode, **load), unit="GiB", unit_size=GIB, size=piece)

    cases = [
        case("bulk-in/buffered", "sink-buffered", "sink", 0, size=256 << 10),
        case("bulk-in/protocol", "sink-protocol", "sink", 0, size=256 << 10),
        case("bulk-out/protocol", "source-protocol", "source", MIB, period=MIB),
        case("bulk-out/streams", "source-streams", "source", MIB, period=MIB),
    ]
    return cases + [with_malloc(case) for case in cases]


def _streams() -> list[Case]:
    def bulk(name: str, kind: str, size: int) -> Case:
        load = _args("sink", size=256 << 10)
        return Case(f"streams/{name}", kind, load, unit="GiB", unit_size=GIB, size=size)

    cases = [
        bulk("readexactly/1m", "stream-readexactly", MIB),
        bulk("readexactly/1m/kept", "stream-readexactly-kept", MIB),
        bulk("readexactly/64k", "stream-readexactly", 64 << 10),
        bulk("read/64k", "stream-read", 64 << 10),
        Case("streams/readline/100", "stream-readline", _args("lines", size=65500), unit="line"),
        Case(
            "streams/reqresp/1024/c16",
            "reqresp-streams",
            _args("echo", size=1024, connections=16),
            size=1024,
        ),
    ]
    return cases + [with_malloc(case) for case in cases]


def _others() -> list[Case]:
    idle = [
        Case(
            f"idle/{kind}/5000",
            f"echo-{kind}",
            _args("idle", connections=5000, size=64, seconds=0.5, warmup=0),
            unit="connection",
            fixed_work=True,
        )
        for kind in ("protocol", "streams")
    ]
    return [
        Case(
            "connect/protocol/64/c16",
            "echo-protocol",
            _args("connect", size=64, connections=16),
            unit="connection",
            sides=(*LOOPS, "c-epoll"),
        ),
        *idle,
        Case(
            "sendfile/1g",
            "sendfile",
            _args("transfer", transfer=GIB, count=1, period=MIB),
            unit="GiB",
            unit_size=GIB,
            file_bytes=GIB,
            fixed_work=True,
        ),
    ]


def all_cases() -> list[Case]:
    return [*_echoes(), *_bulk(), *_streams(), *_others()]


_QUICK = {
    "echo/protocol/1024/c1": ("asyncio", "uvloop", "zcloop", "zcloop:nopoll"),
    "echo/protocol/1024/c1/unpinned": PAIR,
    "echo/protocol/1024/c16": ("asyncio", "uvloop", "rloop", "aiofastnet", "zcloop", "c-epoll"),
    "echo/protocol/1024/c64": PAIR,
    "echo/buffered/1024/c16": PAIR,
    "echo/streams/1024/c16": PAIR,
    "echo/protocol/32768/c16": PAIR,
    "echo/protocol/1024/c16/thread": PAIR,
    "echo/protocol/1024/c1/slow": PAIR,
    "connect/protocol/64/c16": PAIR,
    "bulk-in/buffered": PAIR,
    "bulk-out/protocol": PAIR,
    "streams/readexactly/1m": ("asyncio", "uvloop", "zcloop"),
    "streams/readexactly/1m/malloc": PAIR,
    "streams/readexactly/1m/kept": PAIR,
    "streams/readexactly/64k": PAIR,
    "streams/reqresp/1024/c16": PAIR,
    "streams/readline/100": PAIR,
    "streams/read/64k": PAIR,
    "idle/protocol/5000": PAIR,
    "sendfile/1g": PAIR,
}


def quick_cases() -> list[Case]:
    """The cases that carry the targets, mostly on the two sides that the targets compare."""
    known = {case.id: case for case in all_cases()}
    return [replace(known[id], sides=sides) for id, sides in _QUICK.items()]


def select(cases: list[Case], patterns: list[str]) -> list[Case]:
    """The cases that a pattern names: by id, or as a shell pattern, or as the id's beginning."""
    ids = {case.id for case in cases}

    def named(case: Case, pattern: str) -> bool:
        if pattern in ids:
            return case.id == pattern
        prefix = pattern.rstrip("/") + "/"
        return fnmatchcase(case.id, pattern) or case.id.startswith(prefix)

    return [case for case in cases if any(named(case, pattern) for pattern in patterns)]
