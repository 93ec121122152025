"""A process with as many memory mappings as the system allows it (vm.max_map_count), or nearly.

The interpreter needs mappings too, as its heap grows; `ENVIRONMENT` gives it its memory beforehand,
in one piece.
"""
import ctypes
import errno
import mmap
from pathlib import Path

ENVIRONMENT = {
    "PYTHONMALLOC": "malloc",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TOP_PAD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}
PAGE = mmap.PAGESIZE
READ, WRITE = mmap.PROT_READ, mmap.PROT_WRITE
MAX_MAP_COUNT = int(Path("/proc/sys/vm/max_map_count").read_text())
TOO_MANY = 400_000          # mappings, of which each takes 200 bytes of the kernel's memory

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
FAILED = ctypes.c_void_p(-1).value


def _map(size, prot, flags):
    at = libc.mmap(None, size, prot, flags | mmap.MAP_ANONYMOUS, -1, 0)
    return None if at == FAILED else at


def _map_single():
    """A page that no neighbour can be joined with: each shared one is of a file of its own."""
    return _map(PAGE, 0, mmap.MAP_SHARED)


class Crowd:
    """Takes all mappings but `left`, for as long as it is entered."""

    def __init__(self, left=0):
        self.left = left

    def __enter__(self):
        plugs = [_map_single() for _ in range(self.left)]
        assert None not in plugs
        self.size = (MAX_MAP_COUNT + 16) * PAGE
        self.at = _map(self.size, READ, mmap.MAP_PRIVATE | 0x4000)      # MAP_NORESERVE
        assert self.at
        mprotect, offset = libc.mprotect, PAGE
        while mprotect(self.at + offset, PAGE, READ | WRITE) == 0:
            offset += 2 * PAGE
            assert offset < self.size
        assert ctypes.get_errno() == errno.ENOMEM
        self.singles = []
        while (single := _map_single()) is not None:    # mmap may go one beyond the limit
            self.singles.append(single)
        for plug in plugs:
            assert libc.munmap(plug, PAGE) == 0
        return self

    def __exit__(self, *exc):
        assert libc.munmap(self.at, self.size) == 0
        for single in self.singles:
            assert libc.munmap(single, PAGE) == 0
