"""The byte pattern of bulk streams, as the load generator makes it (native/net.c).

A stream repeats ``PERIOD`` pseudo-random bytes. The period shares no factor with any buffer size,
so a piece that is lost, doubled or swapped leaves the stream out of step from there on, and looking
at the first byte of each piece is enough to notice. A full compare would cost as much as the copy
that is being measured.
"""

from __future__ import annotations

import struct

PERIOD = 65521
LINE_BYTES = 100
LINES_PER_BLOCK = 655


def _period() -> bytes:
    """Made in small pieces: glibc raises its mmap threshold when a larger block is freed, and the
    servers are to have the allocator as a fresh process has it."""
    x = 1
    pieces = []
    for start in range(0, PERIOD, 4096):
        piece = []
        for _ in range(min(4096, PERIOD - start)):
            x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
            piece.append(x >> 24)
        pieces.append(bytes(piece))
    return b"".join(pieces)


PATTERN = _period()


def pattern(nbytes: int) -> bytes:
    """The first `nbytes` bytes of the stream; allocates nothing that it frees again."""
    whole, rest = divmod(nbytes, PERIOD)
    return b"".join([*[PATTERN] * whole, PATTERN[:rest]])


class Checker:
    """Counts a stream's bytes and the pieces whose first byte is not the one due."""

    __slots__ = ("received", "wrong")

    def __init__(self) -> None:
        self.received = 0
        self.wrong = 0

    def feed(self, first: int, nbytes: int) -> None:
        if first != PATTERN[self.received % PERIOD]:
            self.wrong += 1
        self.received += nbytes

    def take(self, data: bytes) -> None:
        self.feed(data[0], len(data))

    def answer(self) -> bytes:
        """What the load generator wants at the end of a stream."""
        return struct.pack("<QQ", self.received, self.wrong)
