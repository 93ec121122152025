"""Memory for bodies: a whole one's, and that which an iteration lends piece by piece.

A whole body is received into a ``bytes`` that nobody has seen, or into memory that pages can be
moved into, where that pays; what came before is copied in front of it.

Fact: 256 KiB of new memory cost about 60 page faults, as much as receiving them.
Rule: one buffer an iteration, not larger than the body needs (in steps, so that bodies of
different sizes can share it), given back to a short list at its end.  What was lent is
released before the memory is used again, and memory of which somebody kept a slice is left
to them: a ``bytearray`` that is exported can't change its size, which tells.
"""

from __future__ import annotations

from typing import Any

from ..chunks import uninitialised_bytes, writable
from ..page_memory import PAGE_BYTES, PageMemory, filled_view, put_bytes

__all__ = ["Piece", "new_result", "view_of"]

_FLOAT_MAX = 256 * 1024
"""Bytes that are worth moving to where the pages of the rest follow them, as for streams."""

_STEP = 512 * 1024
_SPARE_BYTES = 4 * 1024 * 1024
"""In all; the ones that were used last stay."""

_spare: list[bytearray] = []


def _take(nbytes: int) -> bytearray:
    for i in reversed(range(len(_spare))):
        if len(_spare[i]) == nbytes:
            return _spare.pop(i)
    return bytearray(nbytes)


def _keep(buf: bytearray) -> None:
    kept = sum(map(len, _spare))
    if len(buf) > _SPARE_BYTES:
        return
    while kept + len(buf) > _SPARE_BYTES:
        kept -= len(_spare.pop(0))
    _spare.append(buf)


def new_result(transport: Any, parts: list[bytes], have: int, left: int) -> Any:
    """Memory for ``have`` bytes, which are put there, and ``left`` more."""
    if have <= _FLOAT_MAX and left >= have and transport._can_map():
        pages = PageMemory(have + left + PAGE_BYTES)
        if have:
            put_bytes(pages, b"".join(parts))
        return pages
    data = uninitialised_bytes(have + left)
    view = writable(data)
    at = 0
    for part in parts:
        view[at : at + len(part)] = part
        at += len(part)
    return data


def view_of(result: Any, end: int) -> memoryview:
    """The first ``end`` bytes of what :func:`new_result` made, once they are received."""
    if isinstance(result, PageMemory):
        return filled_view(result, end)
    return memoryview(result)[:end]


def _is_lent(buf: bytearray) -> bool:
    try:
        buf.append(buf.pop())
    except BufferError:
        return True
    return False


class Piece:
    """The memory of one iteration, at most ``size`` bytes, and the view of it that is lent."""

    __slots__ = ("_buf", "_memory", "_size", "_view")

    def __init__(self, size: int) -> None:
        self._size = size
        self._buf: bytearray | None = None
        self._memory: memoryview | None = None
        self._view: memoryview | None = None

    def memory(self, left: int) -> memoryview:
        """All of it, to be written to; nobody else sees it.  ``left`` bytes are still to come."""
        if self._buf is None:
            self._buf = _take(min(self._size, -(-left // _STEP) * _STEP))
        if self._memory is None:
            self._memory = memoryview(self._buf)
        return self._memory

    def lend(self, end: int) -> memoryview:
        """A read-only view of the first ``end`` bytes."""
        assert self._memory is not None
        self._view = self._memory[:end].toreadonly()
        return self._view

    def lend_bytes(self, data: bytes) -> memoryview:
        """A view of other memory, which is released like one of ours."""
        self._view = memoryview(data)
        return self._view

    def release(self) -> None:
        """Take back what was lent, or leave the memory to those who kept some of it."""
        view, self._view = self._view, None
        if view is None:
            return
        try:
            view.release()
        except BufferError:
            pass  # somebody exports it further
        if self._memory is not None and self._buf is not None:
            self._memory.release()
            self._memory = None
            if _is_lent(self._buf):
                self._buf = None

    def __del__(self) -> None:
        self.release()
        if self._memory is not None:
            self._memory.release()
        if self._buf is not None and not _is_lent(self._buf):
            _keep(self._buf)
