"""The figures that zcloop sets itself: median ratios to uvloop in the same run."""

from __future__ import annotations

from dataclasses import dataclass

from .sides import BASE


@dataclass(frozen=True)
class Target:
    """`side`'s `metric` divided by that of `base` is to be at least (or at most) `bound`."""

    case: str
    metric: str
    relation: str  # ">=" or "<="
    bound: float
    side: str = "zcloop"
    note: str = ""
    base: str = BASE

    def met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.relation == ">=" else ratio <= self.bound

    def missed_by(self, ratio: float) -> float:
        """How far the ratio is on the wrong side, as a share of the bound; 0 where it is met."""
        return 0.0 if self.met(ratio) else abs(ratio - self.bound) / self.bound


def _pair(case: str, rate: float, cpu: float) -> tuple[Target, Target]:
    return Target(case, "rate", ">=", rate), Target(case, "cpu", "<=", cpu)


TARGETS = (
    *_pair("echo/protocol/1024/c16", 1.00, 1.00),
    *_pair("echo/protocol/1024/c64", 1.00, 1.00),
    *_pair("echo/buffered/1024/c16", 1.00, 1.00),
    *_pair("echo/buffered/1024/c64", 1.00, 1.00),
    Target(
        *("echo/protocol/1024/c1", "rate", ">=", 1.50),
        note="where the machine sleeps between messages",
    ),
    Target("echo/protocol/1024/c1", "cpu", "<=", 1.10),
    Target("echo/protocol/1024/c1", "rate", ">=", 0.97, side="zcloop:nopoll"),
    Target("echo/protocol/1024/c1/slow", "cpu", "<=", 1.10, note="polling must not burn CPU"),
    Target("echo/protocol/32768/c1", "rate", ">=", 1.00),
    Target("echo/protocol/32768/c16", "rate", ">=", 1.00),
    Target("echo/protocol/32768/c64", "rate", ">=", 1.00),
    Target("echo/buffered/32768/c16", "rate", ">=", 1.00),
    Target("echo/protocol/1024/c16/thread", "rate", ">=", 1.00),
    Target("echo/protocol/1024/c16/thread", "p99", "<=", 1.00),
    Target("connect/protocol/64/c16", "rate", ">=", 0.95),
    *_pair("bulk-in/buffered", 1.00, 1.00),
    *_pair("bulk-out/protocol", 1.00, 1.00),
    Target("idle/protocol/5000", "memory", "<=", 1.30),
    Target("idle/streams/5000", "memory", "<=", 1.00),
    Target("sendfile/1g", "cpu", "<=", 0.70),
    *_pair("streams/readexactly/1m", 6.00, 0.15),
    *_pair("streams/readexactly/1m/malloc", 1.25, 0.65),
    Target("streams/readexactly/64k", "rate", ">=", 2.00),
    *_pair("streams/reqresp/1024/c16", 1.10, 0.95),
    Target("streams/readline/100", "rate", ">=", 1.20),
    Target("streams/read/64k", "rate", ">=", 1.20),
)
