"""From raw samples to figures, and the targets that they are judged by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..cases import GIB
from ..measure import Figure, figure
from .cells import CONTROL, SIZES, Cell
from .run import Result, Samples

Metric = Callable[[dict[str, Any]], float]


def cpu(sample: dict[str, Any]) -> float:
    """Microseconds per MB, with the letting go of what was kept."""
    return float((sample["cpu_us"] + sample["release_us"]) / sample["measured_bytes"] * 1e6)


def rate(sample: dict[str, Any]) -> float:
    """Gbit/s."""
    return float(sample["measured_bytes"] * 8e-9 / sample["seconds"])


def share(sample: dict[str, Any]) -> float:
    """Percent of the bytes that were mapped."""
    return float(sample["mapped_share"] * 100)


def switches(sample: dict[str, Any]) -> float:
    """Voluntary context switches (waits) per GiB."""
    return float(sample["voluntary"] / sample["measured_bytes"] * GIB)


def calls(sample: dict[str, Any]) -> float:
    """Receive calls (recv and mapping) per MB, the warm-up's among them."""
    counters = sample.get("counters", sample)  # the C program's stand in the record itself
    return float((counters["recv_calls"] + counters["map_calls"]) / sample["bytes"] * 1e6)


def absolute(samples: Samples, metric: Metric) -> Figure | None:
    return figure([metric(sample) for sample in samples if "error" not in sample])


def ratio(ours: Samples, theirs: Samples, metric: Metric) -> Figure | None:
    """Of the ratios inside each round; the median is what counts."""
    ratios: list[float | None] = []
    for above, below in zip(ours, theirs, strict=False):
        if "error" not in above and "error" not in below and metric(below):
            ratios.append(metric(above) / metric(below))
    return figure(ratios)


def of(result: Result, side: str, metric: Metric) -> Figure | None:
    return absolute(result.samples.get(side, []), metric)


def between(result: Result, ours: str, theirs: str, metric: Metric) -> Figure | None:
    return ratio(result.samples.get(ours, []), result.samples.get(theirs, []), metric)


@dataclass(frozen=True)
class Verdict:
    """`value` is to be at most `bound`; None: not measured."""

    what: str
    value: float | None
    bound: float
    spread: str = ""

    @property
    def met(self) -> bool:
        return self.value is not None and self.value <= self.bound


def _judged(what: str, found: Figure | None, bound: float) -> Verdict:
    if found is None:
        return Verdict(what, None, bound)
    return Verdict(what, found.median, bound, f"{found.low:.2f}..{found.high:.2f}")


def share_gap(result: Result) -> float | None:
    """Points of share that zcloop maps less than the C program."""
    ours, theirs = of(result, "zcloop", share), of(result, "C", share)
    return max(0.0, theirs.median - ours.median) if ours and theirs else None


def _mapping(result: Result) -> list[Verdict]:
    name = result.cell.id
    return [
        Verdict(f"{name}: points of share below C", share_gap(result), 1.0),
        _judged(f"{name}: CPU to C", between(result, "zcloop", "C", cpu), 1.10),
    ]


KEEP_BASES = ("uvloop fresh bytearrays", "asyncio streams")


def _keep(result: Result) -> list[Verdict]:
    return [
        _judged(f"{result.cell.id}: CPU, {side} to {base}", between(result, side, base, cpu), 0.35)
        for side in (s.name for s in result.cell.sides if "-keep" in s.name and s.loop)
        for base in KEEP_BASES
    ]


@dataclass(frozen=True)
class Choice:
    """What receive="auto" made of a cell: its cost and its time, each divided by that of the
    better of "copy" and "map", and the share that it mapped."""

    cell: Cell
    dearer: float
    slower: float
    mapped: float
    better: str  # by CPU
    noise: tuple[float, float] | None
    """CPU of "copy" in a second sample to that in the first: between the quartiles."""
    counted: float | None
    """The cost by counts, see `_by_counts`."""

    @property
    def worst(self) -> float:
        return max(self.dearer, self.slower)


_ATTEMPT_BYTES = 64 * 1024
"""How much an attempt that maps nothing walks through, at most."""


def _attempted(sample: dict[str, Any]) -> float:
    """The share of a stream that went by the mapping call, whatever came of it."""
    counters = sample["counters"]
    by_call = counters["bytes_mapped"] + counters["bytes_copybuf"]
    in_vain = counters["map_unmappable"] * _ATTEMPT_BYTES
    return float(min(1.0, (by_call + in_vain) / sample["bytes"]))


def _by_counts(result: Result) -> float | None:
    """What "auto" costs, to the better, if each byte cost what it does where all go its way.

    "auto" has no path of its own: each byte goes the way of "copy" or that of "map". How many went
    which way is counted exactly, so this hangs on what is dearer where, but not on the noise of the
    samples of "auto".
    """
    copied, mapped = of(result, "copy", cpu), of(result, "map", cpu)
    tried = {
        side: absolute([s for s in result.samples.get(side, []) if "counters" in s], _attempted)
        for side in ("auto", "map")
    }
    if not (copied and mapped and tried["auto"] and tried["map"]):
        return None
    way = tried["auto"].median / tried["map"].median if tried["map"].median else 0.0
    mixed = way * mapped.median + (1 - way) * copied.median
    maps = of(result, "map", share)
    if not (maps and maps.median):
        return mixed / copied.median  # a smaller figure of "map" is noise
    return mixed / min(copied.median, mapped.median)


def choice(result: Result) -> Choice | None:
    """None where a side is missing. Ratios are taken inside rounds, to each of the two, and the
    larger median counts: that is the one to the better."""
    cpus = {side: between(result, "auto", side, cpu) for side in ("copy", "map")}
    times = {side: between(result, side, "auto", rate) for side in ("copy", "map")}
    known_cpus = {side: found.median for side, found in cpus.items() if found}
    known_times = [found.median for found in times.values() if found]
    mapped = of(result, "auto", share)
    if len(known_cpus) < 2 or len(known_times) < 2 or mapped is None:
        return None
    better = max(known_cpus, key=lambda side: known_cpus[side])
    control = between(result, CONTROL, "copy", cpu)
    noise = (control.low, control.high) if control else None
    return Choice(
        *(result.cell, known_cpus[better], max(known_times), mapped.median, better, noise),
        _by_counts(result),
    )


def _auto(result: Result) -> list[Verdict]:
    found, name = choice(result), result.cell.id
    return [
        Verdict(f"{name}: CPU to the better", found.dearer if found else None, 1.05),
        Verdict(f"{name}: time to the better", found.slower if found else None, 1.05),
    ]


def _lowat(result: Result) -> list[Verdict]:
    def one(side: str, metric: Metric) -> Figure | None:
        return between(result, f"{side} lowat 256k", f"{side} lowat 1", metric)

    return [
        _judged(f"{result.cell.id}: {what}, {side}, to lowat 1", one(side, metric), bound)
        for side in ("zcloop", "zcloop aligned")
        for what, metric, bound in (("context switches", switches, 0.4), ("CPU", cpu, 0.6))
    ]


RECEIVE_CALLS = ("getsockopt", "recvfrom", "recvmsg", "read", "readv")


def receive_calls(samples: Samples) -> float | None:
    """For each message; the median."""
    counts = [
        sum(sample["calls"].get(name, 0.0) for name in RECEIVE_CALLS)
        for sample in samples
        if "calls" in sample and "error" not in sample
    ]
    return median(counts) if counts else None


def _rpc(result: Result) -> list[Verdict]:
    found = receive_calls(result.samples.get("zcloop pages map", []))
    # Two calls a message, and the odd one more when a message comes in two pieces.
    return [Verdict(f"{result.cell.id}: receive calls a message", found, 2.05)]


def verdicts(result: Result) -> list[Verdict]:
    judge = {"mapping": _mapping, "keep": _keep, "auto": _auto, "lowat": _lowat, "rpc": _rpc}
    return judge[result.cell.table](result)


def size_name(cell: Cell) -> str:
    return next(name for name, nbytes in SIZES.items() if nbytes == cell.size)
