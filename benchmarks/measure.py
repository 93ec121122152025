"""From raw samples to figures: per-unit values, pairwise ratios, medians and spread.

All sides of a case are sampled in turn, round after round, and a ratio is taken inside each round,
between two samples that are seconds apart; the median is of these ratios. A machine that gets
slower in mid-run moves both halves of a ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from .cases import Case

Samples = list[dict[str, Any]]  # one per round

# metric -> True where more is better
METRICS = {
    "rate": True,
    "cpu": False,
    "p50": False,
    "p99": False,
    "memory": False,
    "idle": False,
}


def value(case: Case, sample: dict[str, Any], metric: str) -> float | None:
    """The metric of one sample.

    rate: units per second. cpu: server user + system, microseconds per unit. p50, p99:
    microseconds. memory: resident bytes per idle connection; idle: server CPU, microseconds per
    second of silence. None where the sample failed or the metric means nothing for the case.
    """
    if "error" in sample:
        return None
    if sample["mode"] == "idle":
        server = sample["server"]
        if metric == "memory":
            return float(server["rss_end"] - server["rss_start"]) / int(sample["connections"])
        if metric == "idle":
            return float(server["cpu_us"]) / float(sample["seconds"])
        return None
    units = float(sample["units"]) / case.unit_size
    if not units:
        return None
    if metric == "rate":
        return units / float(sample["seconds"])
    if metric == "cpu":
        return float(sample["server"]["cpu_us"]) / units
    if metric in ("p50", "p99") and "latency_us" in sample:
        return float(sample["latency_us"][metric])
    return None


@dataclass(frozen=True)
class Figure:
    """Median with quartiles (or the extremes, below four samples)."""

    median: float
    low: float
    high: float
    count: int


def figure(values: list[float | None]) -> Figure | None:
    known = sorted(v for v in values if v is not None)
    if not known:
        return None
    if len(known) < 4:
        return Figure(median(known), known[0], known[-1], len(known))
    low, middle, high = quantiles(known, n=4, method="inclusive")
    return Figure(middle, low, high, len(known))


def absolute(case: Case, samples: Samples, metric: str) -> Figure | None:
    return figure([value(case, sample, metric) for sample in samples])


def ratio(case: Case, samples: Samples, base: Samples, metric: str) -> Figure | None:
    """The median of the ratios of samples of the same round."""
    ratios: list[float | None] = []
    for ours, theirs in zip(samples, base, strict=False):
        above, below = value(case, ours, metric), value(case, theirs, metric)
        ratios.append(above / below if above is not None and below else None)
    return figure(ratios)


def others_cpus(samples: Samples) -> float | None:
    """How many CPUs were busy with neither server nor load generator: the median."""
    busy = [
        (sample["machine_us"] - sample["server"]["cpu_us"] - sample["client_cpu_us"])
        / 1e6
        / sample["seconds"]
        for sample in samples
        if "error" not in sample and "machine_us" in sample
    ]
    return median(busy) if busy else None


def client_share(samples: Samples) -> float | None:
    """The share of a CPU that the load generator itself used: the median."""
    shares = [
        sample["client_cpu_us"] / 1e6 / sample["seconds"]
        for sample in samples
        if "error" not in sample
    ]
    return median(shares) if shares else None
