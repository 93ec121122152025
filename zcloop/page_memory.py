"""Bytes into and out of memory that received pages can be moved into.

Python may only read it, since a mapped page can't be written; what must be
copied into it goes through the native side, which puts writable memory there first.
"""

from __future__ import annotations

import errno
from typing import Any

from .engine import PageMemory, ffi, lib, os_error

__all__ = ["PAGE_BYTES", "PageMemory", "filled_view", "memory_of", "put_bytes"]

PAGE_BYTES = 4096


def memory_of(memory: PageMemory) -> Any:
    """The native side's pointer, good for as long as the object lives."""
    return lib.zc_memory_of(id(memory))


def put_bytes(buffer: Any, data: bytes | memoryview) -> int:
    """Copy as much as fits into a buffer that may be page memory; how many bytes.

    Raises :exc:`TypeError` for a buffer that is neither that nor writable.
    """
    with memoryview(buffer) as view:
        if not view.readonly:
            with view.cast("B") as flat:
                count = min(len(flat), len(data))
                flat[:count] = data[:count]
                return count
    count = int(lib.zc_memory_put(id(buffer), ffi.from_buffer(data), len(data)))
    if count == -errno.EINVAL:
        raise TypeError(f"a writable buffer or page memory is required, not {type(buffer)!r}")
    if count < 0:
        raise os_error(count)
    return count


def filled_view(memory: PageMemory, nbytes: int) -> memoryview:
    """The first ``nbytes`` that a fill has put into it, read-only."""
    start = int(lib.zc_memory_origin(memory_of(memory)))
    return memoryview(memory)[start : start + nbytes]
