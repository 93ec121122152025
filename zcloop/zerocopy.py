"""Which writes go without a copy, and what is known of one until the kernel has let go.

Fact: MSG_ZEROCOPY saves a copy only where the card reads the pages itself.  The
kernel says afterwards when it copied all the same, as it always does on
loopback and between namespaces, and there it only costs.
Rule (``send="auto"``): believe what was measured.  One write tries; until the
verdict the others are copied.  "Copied" turns zero copy off for the connection and is
remembered for its route, the peer's address, so that new connections don't try
again; after a while one does, and each further "copied" doubles that while.

Ownership: the native side holds the memory (native/binding/holds.h) as soon as
the kernel reads it; a :class:`Flight` holds it before that, while it is queued.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeGuard, final

from .engine import lib

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from .config import Config

__all__ = ["NEVER", "Flight", "ZeroCopy", "fixed", "threshold"]

DEFAULT_THRESHOLD = 128 * 1024
"""Bytes from which a write may go without a copy.

Pinning, its completion and the wake-up for it cost some microseconds, which is what copying
64 KiB costs; and a write above 128 KiB comes from malloc's mmap, whose pages are whole."""

PAGES_THRESHOLD = 32 * 1024
"""The same for ``send="pages"``: below it a receiver gains nothing by mapping."""

NEVER = 1 << 62
"""A threshold that no write reaches."""

_SPACING_FIRST = 10.0
_SPACING_MAX = 3600.0
_ROUTES_MAX = 256

_UNTRIED, _TRIAL, _ON, _OFF = range(4)


def fixed(data: Any) -> TypeGuard[bytes | memoryview]:
    """Whether nobody can change the data: ``bytes``, or a read-only view of them."""
    if type(data) is bytes:
        return True
    return (
        type(data) is memoryview
        and data.readonly
        and type(data.obj) is bytes
        and data.c_contiguous
    )


def threshold(config: Config) -> int:
    """Bytes from which a loop's writes may go without a copy."""
    if config.send == "copy":
        return NEVER
    default = PAGES_THRESHOLD if config.send == "pages" else DEFAULT_THRESHOLD
    return config.zerocopy_threshold or default


@final
class Flight:
    """One write that goes by itself, because it may go without a copy or somebody waits for it.

    ``zero`` is None until the first of it is sent, then whether it goes without a copy.
    """

    __slots__ = ("data", "error", "future", "number", "size", "zero")

    def __init__(self, data: Any, size: int, future: asyncio.Future[None] | None = None) -> None:
        self.data = data
        self.size = size
        self.future = future
        self.zero: bool | None = None
        self.number = 0
        self.error: BaseException | None = None

    def __len__(self) -> int:
        return self.size

    def let_go(self) -> None:
        """Nobody reads the memory any more: unlock it, then tell who waits."""
        self.data = None
        future = self.future
        if future is None or future.done() or future.get_loop().is_closed():
            return
        if self.error is None:
            future.set_result(None)
        else:
            future.set_exception(self.error)
            future.exception()  # a lost connection is told to the protocol, too: don't log it


class _Route:
    __slots__ = ("retry_at", "spacing")

    def __init__(self) -> None:
        self.spacing = _SPACING_FIRST / 2
        self.retry_at = 0.0


_routes: dict[Any, _Route] = {}
"""Routes on which the kernel copies, for the process; the oldest goes when there are too many."""


def _note_copied(address: Any, now: float) -> float:
    """Remember it; returns when to try again."""
    route = _routes.get(address)
    if route is None:
        if len(_routes) >= _ROUTES_MAX:
            del _routes[next(iter(_routes))]
        route = _routes[address] = _Route()
    if route.retry_at <= now:  # else another connection has just found out the same
        route.spacing = min(2 * route.spacing, _SPACING_MAX)
        route.retry_at = now + route.spacing
    return route.retry_at


class ZeroCopy:
    """What one connection knows of it; made at its first write above the threshold."""

    __slots__ = ("_address", "_completed", "_copied", "_off_until", "_state",
                 "flying", "forced", "numbers", "timer", "unreaped", "waiting")  # fmt: skip

    def __init__(self, address: Any, forced: bool) -> None:
        self._address = address
        self.forced = forced
        """The program has asked for it (``send="zerocopy"``, ``"pages"``)."""
        self._state = _UNTRIED
        route = _routes.get(address)
        self._off_until = 0.0 if route is None else route.retry_at
        self._completed = self._copied = 0
        self.flying: dict[int, Flight] = {}
        """By number, the flights under way that somebody waits for."""
        self.numbers = 0
        self.waiting = 0
        """How many of them have been sent whole."""
        self.unreaped = 0
        """Sends since the error queue was read."""
        self.timer: Any = None

    @property
    def eager(self) -> bool:
        """Whether completions are to be read at once."""
        return bool(self.waiting) or self._state == _TRIAL

    @property
    def settled(self) -> bool:
        """Whether writes go without a copy until further notice."""
        return self.forced or self._state == _ON

    def hindrance(self) -> int:
        """0 if the next write may go without a copy, else the ``zc_fallback``."""
        if self.forced or self._state == _ON:
            return 0
        if self._state == _TRIAL:
            return lib.ZC_FALLBACK_TRIAL
        if self._off_until and time.monotonic() < self._off_until:
            return lib.ZC_FALLBACK_ROUTE
        self._state = _TRIAL
        return 0

    def number_of(self, flight: Flight) -> int:
        """What the native side calls it, 0 if nobody waits for it."""
        if flight.future is not None and not flight.number:
            self.numbers += 1
            flight.number = self.numbers
            self.flying[flight.number] = flight
        return flight.number

    def not_tried(self) -> None:
        """The write that was to find out was copied for another reason."""
        if self._state == _TRIAL:
            self._state = _UNTRIED

    def judge(self, completed: int, copied: int, alive: Callable[[], object]) -> None:
        """Learn from the connection's counters.

        What a dead connection never sent completes without having been copied, and says nothing.
        """
        if self.forced:
            return
        news, self._completed = completed - self._completed, completed
        bad, self._copied = copied - self._copied, copied
        if not news or self._state not in (_TRIAL, _ON):
            return
        if bad:
            self._state = _OFF
            self._off_until = _note_copied(self._address, time.monotonic())
        elif self._state == _TRIAL and alive():
            self._state = _ON
            _routes.pop(self._address, None)
