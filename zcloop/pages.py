"""Memory that kernel pages are mapped into, as Python sees it.

Two ways for received bytes to reach memory without a copy:

* :class:`PagesProtocol` is handed read-only views of the kernel's own pages, which lie in
  the process's arena (native/pages.c) and stay as long as any view of them does;
* :class:`PageBuffer` is contiguous memory into which such pages are moved
  (native/page_memory.c), for whoever wants a message in one piece.

Both are only an offer: what can't be mapped is copied, and a loop that can't map at all
(another kernel, a sandbox, a full arena) copies everything and says so in its counters.

Fork: handled below Python (pthread_atfork), so that it holds for ``os.fork``,
``multiprocessing`` and foreign code alike.  Views and buffers stay readable in the child, which
opens an arena of its own when it first maps something.
"""

from __future__ import annotations

import asyncio
import dataclasses
import operator
import os
import resource
import sys
from typing import TYPE_CHECKING

from .engine import PageMemory, ffi, lib

if TYPE_CHECKING:
    from typing import Self, SupportsIndex

__all__ = [
    "PageBuffer",
    "PageStats",
    "PagesProtocol",
    "default_arena_bytes",
    "large_buffers",
    "open_arena",
    "page_stats",
]

_MOST_ARENA_BYTES = min(16 << 30, sys.maxsize >> 4)
_LEAST_ARENA_BYTES = 2 << 20
_LARGE = 64 * 1024
"""Buffers of fewer bytes are no reason to let a peer send far ahead (ZC_LARGE)."""

_large_made = False


def large_buffers() -> bool:
    """Whether this process has made a large :class:`PageBuffer`: its connections may lend one."""
    return _large_made


class PageBuffer(PageMemory):
    """Contiguous receive memory that kernel pages can be mapped into.

    ``nbytes`` is its size.  Its :class:`memoryview`, or any slice of that, may be returned by
    :meth:`asyncio.BufferedProtocol.get_buffer` on a zcloop loop; the transport then maps whole
    pages where that pays and copies the rest, and calls ``buffer_updated`` as always.  A view
    that begins on a page (offset a multiple of 4096) can take more of them.

    The bytes can be read at any time, from any thread; what wasn't received yet reads as
    zeros.  Views are read-only, as mapped pages can't be written: an attempt raises
    :exc:`TypeError`.  The memory lives until the last view of it is gone.

    ``exact=True`` promises that the peer will send at least as much as each view that is handed
    to a transport holds, so that the transport may wait for all of it and wake up once
    (SO_RCVLOWAT).  A promise that isn't kept leaves the connection waiting.

    ``fit=True``, of a buffer that ``get_buffer`` makes and returns: its first byte lies where in a
    page the stream's next one does, so that pages can be mapped behind it wherever in the stream
    a message begins.  Its memory then begins anywhere in a page, with no alignment for what is
    made of it.  Made elsewhere it begins on a page, as without it.

    Raises :exc:`TypeError` or :exc:`ValueError` for an ``nbytes`` that isn't a positive whole
    number, and :exc:`MemoryError` where the system has no room for it.
    """

    __slots__ = ("__weakref__",)

    def __new__(
        cls, nbytes: SupportsIndex, *, exact: bool = False, fit: bool = False
    ) -> Self:
        try:
            size = operator.index(nbytes)
        except TypeError:
            raise TypeError(
                f"PageBuffer(nbytes) takes a whole number of bytes, not {type(nbytes).__name__!r}"
            ) from None
        if size < 1:
            raise ValueError(f"PageBuffer(nbytes={size}): valid are numbers from 1 on")
        global _large_made
        _large_made = _large_made or size >= _LARGE
        try:
            return super().__new__(cls, size, exact, fit)
        except (MemoryError, OverflowError):
            raise MemoryError(
                f"PageBuffer(nbytes={size}): the system refuses that much address space, or one "
                "more mapping; use a smaller one, or raise the limit (ulimit -v, "
                "vm.overcommit_memory, vm.max_map_count)"
            ) from None

    def __repr__(self) -> str:
        exact = ", exact=True" if self.exact else ""
        return f"<{type(self).__name__}(nbytes={self.nbytes}{exact}) at {id(self):#x}>"


class PagesProtocol(asyncio.BufferedProtocol):
    """A protocol that receives the kernel's own pages.

    On a zcloop loop whole pages are mapped into this process and handed to
    :meth:`pages_received`.  **Everything else** comes by :meth:`get_buffer` and
    :meth:`buffer_updated`, in the order of the stream with the views: what isn't a whole page
    (headers, the ends of messages, small messages), what the network card or the peer's
    kernel doesn't deliver in whole pages, all bytes while the arena is full, and all
    bytes with ``Config(receive="copy")``.  On any other loop this is a plain
    :class:`asyncio.BufferedProtocol`, and ``pages_received`` is never called.

    So a subclass implements all three (one that lacks any can't be made: :exc:`TypeError`), and a
    message may come partly by one and partly by the other.
    """

    __slots__ = ()

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        lacking = [
            f"{name}()"
            for name in ("get_buffer", "buffer_updated", "pages_received")
            if getattr(cls, name) is getattr(PagesProtocol, name)
        ]
        if lacking:
            raise TypeError(
                f"{cls.__name__} lacks {' and '.join(lacking)}: a PagesProtocol implements "
                "get_buffer(), buffer_updated() and pages_received(), because whole pages come by "
                "the last and everything else by the first two (asyncio.BufferedProtocol has "
                "everything copied)"
            )
        return super().__new__(cls)

    def pages_received(self, view: memoryview) -> None:
        """Take the next bytes of the stream.

        view: one-dimensional, read-only, of unsigned bytes; it begins on a page and is whole
        pages long.  It, its slices and what is made of them (``numpy.frombuffer``) may be kept for
        as long as the receiver likes; the memory goes back when the last of them is gone.  As the
        arena is bounded (``Config.arena_bytes``), a receiver that keeps all views for ever is
        soon served by copies.
        """
        raise NotImplementedError


# -- the arena ----------------------------------------------------------------------------


def default_arena_bytes() -> int:
    """Bytes of address space for the arena where ``Config.arena_bytes`` doesn't say.

    Address space costs nothing, but the arena bounds how much memory the views that a program
    keeps can pin, which can't be swapped and isn't charged to its memory control group.
    So: a quarter of what this process may use, which is the machine's memory or what its
    control group (version 2) leaves it; with an address space limit (``ulimit -v``) at most an
    eighth of that; at least 2 MiB, at most 16 GiB.
    """
    usable = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = min(_MOST_ARENA_BYTES, min([usable, *_group_limits()]) // 4)
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        most = min(most, address_space // 8)
    return max(_LEAST_ARENA_BYTES, most)


def _group_limits(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> list[int]:
    """The memory limits of this process's control group and of those around it."""
    limits = []
    try:
        with open(own) as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    while True:
        try:
            with open(f"{root}{path.rstrip('/')}/memory.max") as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):
            pass  # no such file, as in the topmost group, or "max"
        if path in ("/", ""):
            return limits
        path = os.path.dirname(path)


def open_arena(nbytes: int | None) -> int:
    """Reserve the process's arena, at its first call; `None` chooses the size.

    Returns 0, or the errno for which nothing can be mapped in this process; the answer
    doesn't change, and no later call changes the size.
    """
    return -lib.zc_arena_open(default_arena_bytes() if nbytes is None else nbytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageStats:
    """The process's arena and page buffers; see zc_pages_stats in native/zcloop.h.

    After a fork the child's figures of its arena begin anew.
    """

    arena_bytes: int
    leased_bytes: int
    waiting_bytes: int
    slices: int
    leases: int
    full: int
    zaps: int
    zapped_bytes: int
    memories: int
    memory_bytes: int
    adoptions: int
    adopted_bytes: int
    adoptions_refused: int
    splits: int
    copied_out: int
    unmap_waiting_bytes: int


_STATS_FIELDS = tuple(field.name for field in dataclasses.fields(PageStats))


def page_stats() -> PageStats:
    """A snapshot of the process's figures, for LoopStats."""
    counters = ffi.new("zc_pages_stats *")
    lib.zc_pages_counters(counters)
    return PageStats(**{name: getattr(counters, name) for name in _STATS_FIELDS})
