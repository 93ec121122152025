"""What a transfer cost, measured the same way whatever loop runs.

- CPU: that of the whole process, all threads (getrusage).
- Wake-ups: how often the loop's thread went to sleep and was woken (its voluntary context
  switches); the loops' own counters don't exist on all of them.
- Bytes: those the kernel counts for the connection (TCP_INFO), since a file that the
  loop sends by itself passes no code of ours.
- How the bytes moved (filled in place, mapped, ...): zcloop's counters, by name, as far as
  this version of it has them; on other loops there is nothing to ask.

CPU can't be told apart between transfers that overlap, so those have no figures.
"""

from __future__ import annotations

import asyncio
import dataclasses
import resource
import socket
import struct
import time
from typing import Any

from ..stats import ConnStats

__all__ = ["LEAST_BYTES", "Meter", "Transfer"]

LEAST_BYTES = 16 << 20
"""Below this much, what a transfer costs is mostly what a request costs."""

_MB = 1e6
_GIB = float(1 << 30)
_TCP_INFO_BYTES = struct.Struct("=QQ")
_BYTES_ACKED_AT = 120  # struct tcp_info: tcpi_bytes_acked, then tcpi_bytes_received (Linux 4.1)

# The page's name for a way, and the counter of ConnStats; the rest was copied.
_RECEIVED = {"filled": "bytes_filled", "mapped": "bytes_mapped"}
_SENT = {"sendfile": "sendfile_bytes", "zerocopy": "zerocopy_bytes"}


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of this process so far: seconds by the clock, seconds of CPU, sleeps of this thread."""

    clock: float
    cpu: float
    sleeps: int

    @classmethod
    def now(cls) -> Cost:
        """Must be called in the loop's thread."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        sleeps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return cls(time.monotonic(), usage.ru_utime + usage.ru_stime, sleeps)

    def since(self, before: Cost) -> Cost:
        """The difference."""
        return Cost(self.clock - before.clock, self.cpu - before.cpu, self.sleeps - before.sleeps)


def _kernel_bytes(transport: asyncio.BaseTransport) -> tuple[int, int]:
    """(received, sent and acknowledged) of a TCP connection; zeros once it is gone."""
    if transport.is_closing():
        return 0, 0  # its descriptor may be closed, and another connection's already
    sock = transport.get_extra_info("socket")
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        acked, received = _TCP_INFO_BYTES.unpack_from(info, _BYTES_ACKED_AT)
    except (AttributeError, OSError, struct.error):
        return 0, 0
    return received, acked


def _loop_totals() -> ConnStats | None:
    """The sums over a zcloop loop's connections; None on another loop."""
    loop: Any = asyncio.get_running_loop()
    stats = loop.zcloop_stats() if hasattr(loop, "zcloop_stats") else None
    return None if stats is None else stats.totals


def _ways(stats: ConnStats) -> dict[str, int]:
    """How bytes moved; ways that this version of zcloop doesn't count are left out."""
    found = {}
    for total, ways, copied in (
        ("bytes_received", _RECEIVED, "in_copied"),
        ("bytes_sent", _SENT, "out_copied"),
    ):
        rest = getattr(stats, total)
        for way, counter in ways.items():
            if hasattr(stats, counter):
                found[way] = getattr(stats, counter)
                rest -= found[way]
        found[copied] = max(rest, 0)
    return found


class Transfer:
    """One upload or download under way."""

    def __init__(self, kind: str, transport: asyncio.BaseTransport, alone: bool) -> None:
        self.kind = kind
        self.alone = alone
        self.transport = transport
        self.start = Cost.now()
        self._bytes = _kernel_bytes(transport)

    def moved(self) -> tuple[int, int]:
        """Bytes in and out since the call before."""
        received, sent = _kernel_bytes(self.transport)
        before, self._bytes = (
            self._bytes,
            (max(received, self._bytes[0]), max(sent, self._bytes[1])),
        )
        return self._bytes[0] - before[0], self._bytes[1] - before[1]


class Meter:
    """Transfers of one worker: those under way, and what they came to."""

    def __init__(self, loop_name: str) -> None:
        self.loop_name = loop_name
        self.under_way: set[Transfer] = set()
        self.idle = asyncio.Event()
        self.idle.set()
        self._received = self._sent = 0
        self._last = Cost.now()

    def begin(self, kind: str, transport: asyncio.BaseTransport) -> Transfer:
        """To be called when a transfer starts; :meth:`end` or :meth:`drop` must follow."""
        for other in self.under_way:
            other.alone = False
        transfer = Transfer(kind, transport, alone=not self.under_way)
        self.under_way.add(transfer)
        self.idle.clear()
        return transfer

    def drop(self, transfer: Transfer) -> None:
        """The transfer is over; calling it again does nothing."""
        if transfer in self.under_way:
            self._collect(transfer)
            self.under_way.discard(transfer)
            if not self.under_way:
                self.idle.set()

    def end(self, transfer: Transfer, size: int) -> dict[str, Any] | None:
        """The transfer moved ``size`` bytes to its end; its figures, None where there are none."""
        cost = Cost.now().since(transfer.start)
        self.drop(transfer)
        if not transfer.alone or size < LEAST_BYTES or cost.clock <= 0:
            return None
        return {
            "loop": self.loop_name,
            "kind": transfer.kind,
            "bytes": size,
            "seconds": cost.clock,
            "mb_per_s": size / _MB / cost.clock,
            "cpu_per_gib": cost.cpu / (size / _GIB),
            "wakeups_per_mb": cost.sleeps / (size / _MB),
            "at": time.time(),
        }

    def _collect(self, transfer: Transfer) -> None:
        received, sent = transfer.moved()
        self._received += received
        self._sent += sent

    def sample(self, connections: int) -> dict[str, Any]:
        """What happened since the sample before, as the page's charts want it.

        Rates are bytes a second; ``cpu_ms_per_mb`` and ``wakeups_per_mb`` are None
        while too little moves to divide by; ``ways`` counts bytes since the worker began.
        """
        for transfer in self.under_way:
            self._collect(transfer)
        now = Cost.now()
        spent, self._last = now.since(self._last), now
        received, sent = self._received, self._sent
        self._received = self._sent = 0
        megabytes = (received + sent) / _MB
        busy = megabytes >= 1
        totals = _loop_totals()
        return {
            "seconds": spent.clock,
            "in_per_s": received / spent.clock,
            "out_per_s": sent / spent.clock,
            "cpu_ms_per_mb": spent.cpu * 1e3 / megabytes if busy else None,
            "wakeups_per_mb": spent.sleeps / megabytes if busy else None,
            "ways": None if totals is None else _ways(totals),
            "connections": connections,
            "transfers": len(self.under_way),
        }
