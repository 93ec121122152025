"""What can be seen of a connection: immutable snapshots of its counters."""

from __future__ import annotations

import dataclasses
import struct

__all__ = ["ConnStats", "LoopStats"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnStats:
    """A connection's counters since it was made; bytes and calls.

    ``bytes_filled`` is the part of ``bytes_received`` that went straight into a
    reader's result; ``send_short`` counts sends that the kernel didn't take
    whole; ``wakeups`` counts readable events; ``lowat_set`` changes of SO_RCVLOWAT.
    """

    bytes_received: int = 0
    recv_calls: int = 0
    bytes_filled: int = 0
    fills: int = 0
    wakeups: int = 0
    bytes_sent: int = 0
    send_calls: int = 0
    send_short: int = 0
    sendfile_bytes: int = 0
    lowat_set: int = 0

    @classmethod
    def from_native(cls, counters: bytes) -> ConnStats:
        """From the native side's array of 64-bit counters, which has the fields' order."""
        values = struct.unpack(f"={len(counters) // 8}Q", counters)
        names = (field.name for field in dataclasses.fields(cls))
        return cls(**dict(zip(names, values, strict=False)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopStats:
    """A loop's counters since its first connection.

    ``polls`` counts looks at the sockets, ``empty_polls`` those that found nothing,
    ``events`` what the others found; ``spins`` counts slices of polling before sleeping,
    ``spin_hits`` those that found something and ``spin_misses`` polls that were given up;
    ``connections`` is how many descriptors are watched now, listeners included.
    """

    polls: int = 0
    empty_polls: int = 0
    events: int = 0
    accepts: int = 0
    accept_errors: int = 0
    spins: int = 0
    spin_hits: int = 0
    spin_misses: int = 0
    connections: int = 0
