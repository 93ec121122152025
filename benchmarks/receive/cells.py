"""What is measured: five tables of cells, each with the sides that stand in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ..cases import GIB, MIB

KIB = 1 << 10
WHOLE_MSS = 4096 + 12
"""TCP_MAXSEG for segments of a whole page: the timestamp option takes 12 bytes of it."""

MTUS = (1500, 4148, 9000, 61492)
SENDERS = ("plain", "zerocopy", "sendfile", "splice")
MAPPABLE = ("zerocopy", "splice")
SIZES = {"16k": 16 * KIB, "256k": 256 * KIB, "1m": MIB}
TABLES = ("mapping", "keep", "auto", "lowat", "rpc")


@dataclass(frozen=True)
class Side:
    """A receiver. `loop` is a factory as `benchmarks.servers.main.loop_factory` reads it, or
    empty for the C program."""

    name: str
    loop: str
    kind: str
    env: tuple[tuple[str, str], ...] = ()
    lowat: int = 0


@dataclass(frozen=True)
class Cell:
    """One workload and who receives it. All sizes in bytes; `mtu` 0 is loopback, `mss` 0 leaves
    the segments to the kernel."""

    id: str
    sender: str
    size: int
    sides: tuple[Side, ...]
    nbytes: int = GIB
    warmup: int = 32 * MIB
    write: int = 0  # what the sender writes at a time, where it isn't `size`
    mss: int = 0
    mtu: int = 0
    header: int = 0
    answer: int = 0
    pace: int = 0  # bytes a second that the sender writes at most; 0: as fast as it can
    strace: bool = False

    @property
    def table(self) -> str:
        return self.id.partition("/")[0]


def c_side(kind: str, name: str = "C") -> Side:
    return Side(name, "", kind)


def zcloop_side(kind: str, receive: str, name: str = "") -> Side:
    env = (("ZCLOOP_RECEIVE", receive),)
    return Side(name or f"zcloop {kind} {receive}", "zcloop:new_event_loop", kind, env)


def _mapping() -> list[Cell]:
    """Forced mapping, views let go at once, beside the C program."""
    sides = (c_side("map"), zcloop_side("pages", "map", "zcloop"))
    routes = [("loopback", WHOLE_MSS, 0), ("loopback-default", 0, 0)]
    routes += [(f"veth-{mtu}", 0, mtu) for mtu in MTUS]
    return [
        Cell(f"mapping/{name}/{sender}/{size}", sender, SIZES[size], sides, mss=mss, mtu=mtu)
        for name, mss, mtu in routes
        for sender in MAPPABLE
        for size in ("256k", "1m")
    ]


def _keep() -> list[Cell]:
    """Every byte kept to the end, 1 MiB messages."""
    kinds = ("pages-keep", "pagebuffer-keep", "pagebuffer-exact", "readview-keep")
    sides = (
        Side("uvloop fresh bytearrays", "uvloop:new_event_loop", "fresh"),
        Side("uvloop fresh, shifted", "uvloop:new_event_loop", "fresh-shifted"),
        Side("asyncio streams", "asyncio:new_event_loop", "streams-keep"),
        Side("uvloop streams", "uvloop:new_event_loop", "streams-keep"),
        *(zcloop_side(kind, "auto", f"zcloop {kind}") for kind in kinds),
        Side("zcloop fresh bytearrays", "zcloop:new_event_loop", "fresh"),
        c_side("map-keep", "C map-keep"),
        c_side("fresh", "C fresh"),
    )
    return [
        Cell(f"keep/{sender}/1m", sender, MIB, sides, mss=WHOLE_MSS) for sender in MAPPABLE
    ]


AUTO_KINDS = ("reused", "pagebuffer", "pages", "pages-keep", "pagebuffer-keep", "readview-keep")


CONTROL = "copy again"
"""The same as "copy": what differs between the two is the noise of the cell."""


def _auto() -> list[Cell]:
    """The decision of receive="auto", against both that it can take."""
    return [
        Cell(
            f"auto/{kind}/{sender}/{segments}/{size}",
            sender,
            nbytes,
            (
                *(zcloop_side(kind, receive, receive) for receive in ("auto", "copy", "map")),
                zcloop_side(kind, "copy", CONTROL),
            ),
            nbytes=256 * MIB,
            mss=mss,
        )
        for kind in AUTO_KINDS
        for sender in SENDERS
        for segments, mss in (("default", 0), ("whole", WHOLE_MSS))
        for size, nbytes in SIZES.items()
    ]


def _lowat() -> list[Cell]:
    """256 KiB wanted at a time, 16 KiB written at a time: as fast as the sender can, where the
    receiver may never be without bytes; and at 4 Gbit/s, where it waits for them."""
    wanted = 256 * KIB
    receivers = {
        "zcloop": ("zcloop:new_event_loop", "reused"),
        "zcloop aligned": ("zcloop:new_event_loop", "reused-aligned"),
        "uvloop": ("uvloop:new_event_loop", "reused"),
        "uvloop aligned": ("uvloop:new_event_loop", "reused-aligned"),
        "C": ("", "reused"),  # aligned, too
    }
    sides = [
        Side(f"{name} lowat {'256k' if lowat else '1'}", loop, kind, lowat=lowat)
        for name, (loop, kind) in receivers.items()
        for lowat in (0, wanted)
    ]
    fast = Cell("lowat/256k/16k", "plain", wanted, tuple(sides), write=16 * KIB)
    return [fast, replace(fast, id="lowat/256k/16k/paced", pace=500_000_000, nbytes=512 * MIB)]


def _rpc() -> list[Cell]:
    """A 64-byte header and 32 KiB that can be mapped; each message is answered with 64 bytes."""
    sides = (
        c_side("map"),
        zcloop_side("pages", "map"),
        zcloop_side("pages", "auto"),
        zcloop_side("pages", "copy"),
        Side("uvloop reused", "uvloop:new_event_loop", "reused"),
    )
    size = 32 * KIB
    messages = 2000
    return [
        Cell(
            "rpc/32k",
            *("splice", size, sides),
            nbytes=(size + 64) * messages,
            warmup=0,
            header=64,
            answer=64,
            strace=True,
        )
    ]


def all_cells() -> list[Cell]:
    return [*_mapping(), *_keep(), *_auto(), *_lowat(), *_rpc()]


_QUICK = (
    "mapping/loopback/*/256k",
    "mapping/veth-*/zerocopy/256k",
    "keep/zerocopy/1m",
    "auto/pages-keep/*/whole/256k",
    "auto/pagebuffer/*/whole/256k",
    "lowat/*",
    "rpc/*",
)


def select(cells: Iterable[Cell], patterns: Iterable[str]) -> list[Cell]:
    """Cells whose id a pattern matches, or begins."""
    wanted = tuple(patterns)
    return [
        cell
        for cell in cells
        if any(fnmatchcase(cell.id, one) or cell.id.startswith(one) for one in wanted)
    ]


def quick_cells() -> list[Cell]:
    """The main cells of each table, with a quarter of the data."""
    return [
        cell if cell.strace else replace(cell, nbytes=min(cell.nbytes, 256 * MIB))
        for cell in select(all_cells(), _QUICK)
    ]
