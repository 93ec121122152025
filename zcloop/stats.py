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

    ``bytes_mapped`` came as the kernel's pages, ``bytes_copybuf`` were copied by a
    mapping call behind them.  Of ``map_calls``, ``map_unmappable`` found no page first in
    the queue.  Reasons to copy instead: ``map_backed_off`` counts how often a stream
    of too few pages was given a rest, ``map_not_kept`` how often a receiver that let go of
    all views at once was, ``map_arena_full`` and ``map_unsupported`` what they say.
    ``map_not_moved`` counts ranges that were copied from their pages, since they
    couldn't be moved into contiguous memory.

    ``zerocopy_sends`` went without a copy, as far as we are concerned, with
    ``zerocopy_bytes``; of these the kernel has let go of ``zerocopy_completed``, told in
    ``zerocopy_notices``, and said of ``zerocopy_copied`` that it copied them after all.
    ``zerocopy_fallback_*`` count writes that were copied, wholly or in part, each once and
    by its first reason: the ``route`` copies anyway; a ``trial`` is finding that out; a ``limit``
    of ours, or the kernel's (``enobufs``), is reached; or ``unsupported`` by kernel, socket or
    memory, or switched off by the program.
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
    bytes_mapped: int = 0
    bytes_copybuf: int = 0
    map_calls: int = 0
    map_unmappable: int = 0
    map_backed_off: int = 0
    map_not_kept: int = 0
    map_arena_full: int = 0
    map_not_moved: int = 0
    map_unsupported: int = 0
    zerocopy_sends: int = 0
    zerocopy_bytes: int = 0
    zerocopy_completed: int = 0
    zerocopy_copied: int = 0
    zerocopy_notices: int = 0
    zerocopy_fallback_route: int = 0
    zerocopy_fallback_trial: int = 0
    zerocopy_fallback_limit: int = 0
    zerocopy_fallback_enobufs: int = 0
    zerocopy_fallback_unsupported: int = 0

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
    ``connections`` is how many descriptors are watched now, listeners included; ``totals``
    sums the counters of all connections, those that are gone included; ``mapping`` says
    whether received pages are mapped: "on", "off: " and why, "" if nobody asked for it yet.
    In flight now are ``zerocopy_outstanding`` sends of ``zerocopy_pinned`` bytes, and
    ``zerocopy_lingering`` connections have ended and wait for theirs.

    Of the process, for all its loops: ``arena_bytes`` is the address space for mapped
    pages (0: nothing was mapped yet), ``arena_used_bytes`` what connections and views hold
    of it, ``arena_full`` how often there was no room.
    """

    polls: int = 0
    empty_polls: int = 0
    events: int = 0
    accepts: int = 0
    accept_errors: int = 0
    spins: int = 0
    spin_hits: int = 0
    spin_misses: int = 0
    zerocopy_outstanding: int = 0
    zerocopy_pinned: int = 0
    zerocopy_lingering: int = 0
    connections: int = 0
    totals: ConnStats = ConnStats()
    mapping: str = ""
    arena_bytes: int = 0
    arena_used_bytes: int = 0
    arena_full: int = 0
