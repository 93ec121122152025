"""Whether a loop maps received pages: what was configured, what this machine can, what it costs.

Decided when the first destination that pages could go to turns up (a
``PagesProtocol``, a ``PageBuffer``, a ``readview``), so that a program without
one pays nothing.  From then on native/map_policy.c decides connection by connection.

What didn't work on a route (the peer's address) is remembered for its next
connections: they begin by copying, for as long as the last one would have gone on, and
each new connection makes the memory a step weaker, so that the route is tried again.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from .engine import Engine, ffi, lib
from .page_memory import PAGE_BYTES
from .pages import open_arena

__all__ = ["Calibration", "calibration", "enable", "recall", "remember", "state"]

_POLICIES = {"copy": lib.ZC_MAP_NEVER, "auto": lib.ZC_MAP_AUTO, "map": lib.ZC_MAP_ALWAYS}
_MIN_BYTES = 4 * 4096
"""Fewer waiting bytes aren't mapped in "auto": the call costs as much as their pages."""

_ROUTES_MAX = 1024
_routes: OrderedDict[Hashable, int] = OrderedDict()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """CPU nanoseconds that receiving a page of 4 KiB costs, its bytes read once.

    ``mapped``: its memory is the kernel's; ``fresh``: copied into memory that was
    never touched; ``warm``: copied into memory in the processor's cache; ``shifted``: the
    same, 16 bytes behind a page's beginning, where a large ``bytearray`` begins and some
    processors copy several times slower.  All None, with ``error`` saying why, where
    pages couldn't be mapped over loopback.
    """

    mapped: int | None = None
    fresh: int | None = None
    warm: int | None = None
    shifted: int | None = None
    error: str | None = None

    @property
    def pays(self) -> bool:
        """Whether mapping is cheaper than copying into fresh memory, as far as is known."""
        return self.mapped is None or self.fresh is None or self.mapped < self.fresh

    @property
    def shifted_is_dear(self) -> bool:
        """Whether mapping is cheaper even than copying into warm memory that is ``shifted``."""
        return self.mapped is not None and self.shifted is not None and self.mapped < self.shifted

    def __str__(self) -> str:
        if self.error:
            return f"not measured: {self.error}"
        return (
            f"a page of 4 KiB, received and read: {self.mapped} ns mapped, {self.fresh} ns copied "
            f"into fresh memory, {self.warm} ns into warm memory "
            f"({self.shifted} ns where that begins 16 bytes into its page); "
            f"mapping {'pays' if self.pays else 'does not pay'} for memory that is kept"
        )


@functools.cache
def calibration(arena_bytes: int | None = None) -> Calibration:
    """Measured once per process, in a few milliseconds, on sockets of its own on loopback."""
    error = -open_arena(arena_bytes)
    out: Any = ffi.new("zc_calibration *")
    if not error:
        error = lib.zc_calibrate_nogil(out)
    if error:
        return Calibration(error=_named(-error))
    return Calibration(
        mapped=out.mapped_ns, fresh=out.fresh_ns, warm=out.warm_ns, shifted=out.shifted_ns
    )


def enable(engine: Engine, receive: str, arena_bytes: int | None) -> str:
    """Set an engine up for mapping; "on", or why its connections are to copy."""
    if receive == "copy":
        return 'off: receive="copy"'
    if os.sysconf("SC_PAGE_SIZE") != PAGE_BYTES:
        return f"off: the native side knows pages of {PAGE_BYTES} bytes only"
    if error := open_arena(arena_bytes):
        return f"off: no memory of a TCP socket can be mapped ({_named(error)})"
    if receive == "auto" and not calibration(arena_bytes).pays:
        return f"off: {calibration(arena_bytes)}"
    if receive == "auto":
        lib.zc_engine_set_shifted(engine.c, calibration(arena_bytes).shifted_is_dear)
    lib.zc_engine_set_map(engine.c, _POLICIES[receive], _MIN_BYTES)
    return "on"


def state(engine: Engine) -> str:
    """For people: whether an engine maps, and why not."""
    if error := lib.zc_engine_map_unsupported(engine.c):
        return f"off: the kernel refuses to map received pages ({_named(error)})"
    return engine.mapping


def _named(error: int) -> str:
    return f"{errno.errorcode.get(error, error)}, {os.strerror(error)}"


def recall(route: Hashable) -> int:
    """How many attempts in a row have failed on a route lately; weaker each time it is asked."""
    level = _routes.get(route, 0)
    if level > 1:
        _routes[route] = level - 1
    elif level:
        del _routes[route]
    return level


def remember(route: Hashable, level: int) -> None:
    """A connection has ended: what it knows of its route."""
    if not level:
        _routes.pop(route, None)
        return
    _routes[route] = level
    _routes.move_to_end(route)
    if len(_routes) > _ROUTES_MAX:
        _routes.popitem(last=False)
