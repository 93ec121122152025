"""Tables for people: one per case, and one for the targets. Colour only on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .cases import Case
from .measure import METRICS, Figure, absolute, client_share, others_cpus, ratio
from .runner import Result
from .sides import BASE
from .targets import TARGETS, Target
from .terminal import SIMPLE, Console, Table

# Within this of 1.00 a ratio gets no colour: it is what two equal sides differ by here.
NEUTRAL = 0.02
# A load generator that is busy for more of the time than this may be what limits the rate.
CLIENT_BOUND = 0.95
# More than this many CPUs busy with other programs and the machine was not a quiet one.
OTHERS_CPUS = 0.15


def _number(value: float) -> str:
    if value >= 10000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def _cell(figure: Figure | None, scale: float = 1.0, spread: bool = True) -> str:
    """The median, and half the distance between the quartiles as a share of it."""
    if figure is None:
        return "-"
    text = _number(figure.median * scale)
    if not spread or not figure.median:
        return text
    half = (figure.high - figure.low) / 2 / abs(figure.median)
    return f"{text} [dim]±{half:.0%}[/dim]"


def _ratio_cell(figure: Figure | None, more_is_better: bool) -> str:
    if figure is None:
        return "-"
    text = f"{figure.median:.2f}"
    gain = figure.median - 1 if more_is_better else 1 - figure.median
    if abs(gain) <= NEUTRAL:
        return text
    return f"[green]{text}[/green]" if gain > 0 else f"[red]{text}[/red]"


@dataclass(frozen=True)
class _Column:
    metric: str
    heading: str
    scale: float = 1.0
    spread: bool = True
    compared: bool = True


def _columns(case: Case) -> list[_Column]:
    """What the case can show."""
    if case.id.startswith("idle/"):
        return [
            _Column("memory", "KiB/connection", 1 / 1024),
            _Column("idle", "CPU µs/s idle", spread=False, compared=False),
        ]
    if case.bulk:
        return [_Column("rate", "GiB/s"), _Column("cpu", "CPU s/GiB", 1e-6)]
    columns = [_Column("rate", f"{case.unit}s/s"), _Column("cpu", f"CPU µs/{case.unit}")]
    if case.unit != "line":
        columns += [
            _Column("p50", "p50 µs", spread=False, compared=False),
            _Column("p99", "p99 µs", spread=False),
        ]
    return columns


def case_table(result: Result, base_side: str = BASE) -> Table:
    """Absolute figures, then ratios to `base_side`."""
    case = result.case
    columns = _columns(case)
    compared = [column for column in columns if column.compared]
    table = Table(title=case.id, title_justify="left", title_style="bold", box=SIMPLE)
    table.add_column("side")
    for column in columns:
        table.add_column(column.heading, justify="right")
    for column in compared:
        table.add_column(f"{column.metric} ×{base_side}", justify="right")
    base = result.samples.get(base_side)
    for name, samples in result.samples.items():
        cells = [
            _cell(absolute(case, samples, column.metric), column.scale, column.spread)
            for column in columns
        ]
        for column in compared:
            figure = ratio(case, samples, base, column.metric) if base else None
            cells.append(_ratio_cell(figure, METRICS[column.metric]))
        table.add_row(name, *cells)
    return table


def notes(result: Result, absent: dict[str, str]) -> list[str]:
    """What the table can't show: sides that did not run (`absent`, with the reason), samples that
    failed, rates that say more about the load generator than about the server."""
    lines = [f"{side}: {reason}" for side, reason in absent.items()]
    for side, samples in result.samples.items():
        errors = Counter(str(sample["error"]) for sample in samples if "error" in sample)
        lines += [
            f"{side}: {count} of {len(samples)} samples failed: {error}"
            for error, count in errors.items()
        ]
        noisy = Counter(
            str(sample["stderr"]).splitlines()[-1]
            for sample in samples
            if "stderr" in sample and "error" not in sample
        )
        lines += [f"{side}: wrote to stderr: {line}" for line in noisy]
        busy = client_share(samples)
        if busy is not None and busy > CLIENT_BOUND:
            lines.append(f"{side}: the load generator used {busy:.0%} of a CPU and limits the rate")
        others = others_cpus(samples)
        if others is not None and others > OTHERS_CPUS:
            lines.append(f"{side}: other programs used {others:.1f} CPUs meanwhile")
    return lines


def _verdict(target: Target, result: Result) -> tuple[str, str, bool | None]:
    """(measured, verdict, met); None where there is nothing to judge."""
    samples, base = result.samples.get(target.side), result.samples.get(target.base)
    figure = ratio(result.case, samples, base, target.metric) if samples and base else None
    if figure is None:
        return "-", "not measured", None
    measured = f"{figure.median:.2f} ({figure.low:.2f}..{figure.high:.2f})"
    if target.met(figure.median):
        return measured, "[green]met[/green]", True
    verdict = f"[red]missed by {target.missed_by(figure.median):.1%}[/red]"
    if target.met(figure.low) or target.met(figure.high):
        verdict += ", within the spread"
    return measured, verdict, False


def gate_table(results: list[Result], targets: Sequence[Target] = TARGETS) -> tuple[Table, int]:
    """The targets against the results, and how many of them are missed or not measured."""
    table = Table(title="targets", title_justify="left", title_style="bold", box=SIMPLE)
    for heading in ("case", "side", "metric", "target", "ratio to", "ratio", "verdict"):
        table.add_column(heading, no_wrap=heading != "verdict")
    known = {result.case.id: result for result in results}
    failed = 0
    for target in targets:
        bound = f"{target.relation} {target.bound:.2f}"
        if target.case in known:
            measured, verdict, met = _verdict(target, known[target.case])
        else:
            measured, verdict, met = "-", "not measured", None
        failed += not met
        verdict += f" ({target.note})" if target.note else ""
        table.add_row(
            *(target.case, target.side, target.metric, bound, target.base, measured, verdict)
        )
    return table, failed


def console() -> Console:
    """Wide enough for a table when the output is a file."""
    probe = Console()
    return probe if probe.is_terminal else Console(width=160, color_system=None)


def headline(stamp: dict[str, Any]) -> list[str]:
    """Machine, versions and method, as lines of text."""
    versions = ", ".join(f"{k} {v}" for k, v in stamp["libraries"].items() if v)
    pair = stamp["cpus_used"]
    place = f"server on CPU {pair[0]}, client on CPU {pair[1]}" if pair else "not pinned"
    return [
        f"{stamp['date']}  {stamp['cpu']} × {stamp['cpus']}, Linux {stamp['kernel']}, "
        f"Python {stamp['python']}",
        versions,
        f"{stamp['rounds']} rounds of {stamp['seconds']:g} s a side, interleaved; {place}; "
        f"load average at the start {stamp['load_average'][0]:.1f}",
        "medians ± half the range between the quartiles (between the extremes below 4 rounds); "
        "× are medians of the ratios inside each round",
    ]


def print_head(console: Console, stamp: dict[str, Any], missing: dict[str, str]) -> None:
    lines = headline(stamp) + [f"{side} is not here: {why}" for side, why in missing.items()]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_passing(console: Console, text: str = "") -> None:
    """A line that the next one replaces."""
    width = console.width - 1
    console.print(text[:width].ljust(width), end="\r", markup=False, highlight=False)


def print_case(console: Console, result: Result, absent: dict[str, str]) -> None:
    if console.is_terminal:
        print_passing(console)
    console.print(case_table(result))
    for line in notes(result, absent):
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
