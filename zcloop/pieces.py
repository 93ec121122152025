"""What may be sent as it is, and what must be copied first because somebody could change it."""

from __future__ import annotations

from typing import Any

__all__ = ["JOIN_MAX", "Piece", "flat", "own", "sizeable"]

JOIN_MAX = 4 * 1024
"""Bytes up to which several pieces are joined instead of described one by one."""

Piece = bytes | memoryview


def own(data: Any) -> Piece:
    """The data as something immutable, copied only if somebody could change it.

    Its buffer is asked for once, and nothing else of it: what a subclass answers to ``bytes()``
    or ``len()`` is anything, and to a second view perhaps something else (PEP 688).
    """
    if type(data) is bytes:
        return data
    view = memoryview(data)
    if view.readonly and type(view.obj) is bytes and view.c_contiguous:
        return view.cast("B")
    return view.tobytes()


def flat(view: memoryview) -> Piece:
    """A view's bytes one by one, copied if they aren't in a row."""
    return view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()


def sizeable(data: Any) -> bytes | bytearray | memoryview:
    """What may be sent as it is, or a copy: of what is small, strided or of a subclass."""
    kind = type(data)
    if kind is bytes:
        return data  # type: ignore[no-any-return]
    with memoryview(data) as view:
        if view.nbytes > JOIN_MAX and view.c_contiguous and kind in (bytearray, memoryview):
            return data  # type: ignore[no-any-return]
        return view.tobytes()
