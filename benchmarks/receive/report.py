"""The five tables, and the targets behind them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from ..measure import Figure
from ..terminal import SIMPLE, Console, Table
from . import figures
from .figures import Choice, Verdict, between, choice, cpu, of, rate, share, switches
from .run import Result

TITLES = {
    "mapping": "mapping: PagesProtocol with receive=map beside C, views let go at once",
    "keep": "keep: every byte kept to the end, 1 MiB messages",
    "auto": (
        "auto: receive=auto, CPU and time to the better of copy and map (share mapped), "
        "noise: CPU of copy in a second sample to the first; last, CPU by counts"
    ),
    "lowat": "lowat: 256 KiB wanted, 16 KiB written at a time",
    "rpc": "rpc: 64-byte header and 32 KiB, answered with 64 bytes; system calls a message",
}
# More than this share of a CPU busy with other programs, and the machine was not a quiet one.
OTHERS_SHARE = 0.15


def _table(*columns: str, names: int = 1) -> Table:
    """The first `names` columns hold words, the others figures."""
    table = Table(box=SIMPLE)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < names else "right", no_wrap=True)
    return table


def _cell(figure: Figure | None, form: str = ".0f") -> str:
    if figure is None:
        return "-"
    half = (figure.high - figure.low) / 2 / abs(figure.median) if figure.median else 0
    return f"{figure.median:{form}} [dim]±{half:.0%}[/dim]"


def _plain(figure: Figure | None, form: str = ".2f") -> str:
    return "-" if figure is None else f"{figure.median:{form}}"


def _mapping(results: Sequence[Result]) -> Table:
    table = _table(
        *("cell", "share C", "share zcloop", "CPU C", "CPU zcloop µs/MB"),
        *("CPU ×C", "Gbit/s C", "zcloop", "rate ×C"),
        *("sleeps/GiB C", "zcloop", "calls/MB C", "zcloop"),
    )
    for result in results:
        sides = ("C", "zcloop")
        table.add_row(
            result.cell.id.partition("/")[2],
            *(_plain(of(result, side, share)) for side in sides),
            *(_cell(of(result, side, cpu)) for side in sides),
            _plain(between(result, "zcloop", "C", cpu)),
            *(_plain(of(result, side, rate), ".1f") for side in sides),
            _plain(between(result, "zcloop", "C", rate)),
            *(_plain(of(result, side, switches), ".0f") for side in sides),
            *(_plain(of(result, side, figures.calls), ".1f") for side in sides),
        )
    return table


def _keep(results: Sequence[Result]) -> Table:
    bases = figures.KEEP_BASES
    table = _table(
        *("cell", "side", "CPU µs/MB", "Gbit/s", "share"),
        *(f"CPU ×{base}" for base in bases),
        names=2,
    )
    for result in results:
        for side in result.samples:
            table.add_row(
                result.cell.id.partition("/")[2],
                side,
                _cell(of(result, side, cpu)),
                _cell(of(result, side, rate), ".1f"),
                _plain(of(result, side, share), ".1f"),
                *(_plain(between(result, side, base, cpu)) for base in bases),
            )
    return table


def _grid_cell(found: Choice | None) -> str:
    if found is None:
        return "-"
    text = f"{found.dearer:.2f} {found.slower:.2f} ({found.mapped:.0f} %)"
    if found.noise is not None:
        text += " {:.2f}..{:.2f}".format(*found.noise)
    if found.counted is not None:
        text += f" {found.counted:.2f}"
    return f"[red]{text}[/red]" if found.worst > 1.05 else text


def _auto(results: Sequence[Result]) -> Table:
    sizes = sorted({result.cell.size for result in results})
    names = {result.cell.size: figures.size_name(result.cell) for result in results}
    table = _table("receiver/sender/segments", *(names[size] for size in sizes))
    rows: dict[str, dict[int, str]] = {}
    for result in results:
        row = result.cell.id.partition("/")[2].rpartition("/")[0]
        rows.setdefault(row, {})[result.cell.size] = _grid_cell(choice(result))
    for row, cells in rows.items():
        table.add_row(row, *(cells.get(size, "-") for size in sizes))
    return table


def _lowat(results: Sequence[Result]) -> Table:
    table = _table(
        *("cell", "side", "CPU µs/MB", "switches/GiB", "Gbit/s"),
        *("CPU ×lowat 1", "switches ×lowat 1"),
        names=2,
    )
    for result in results:
        for side in result.samples:
            base = side.rpartition(" ")[0] + " 1"
            table.add_row(
                result.cell.id.partition("/")[2],
                side,
                _cell(of(result, side, cpu)),
                _cell(of(result, side, switches)),
                _cell(of(result, side, rate), ".1f"),
                *(_plain(between(result, side, base, metric)) for metric in (cpu, switches)),
            )
    return table


def _rpc(results: Sequence[Result]) -> Table:
    table = _table("side", "receive calls", "share", "all calls")
    for result in results:
        for side, samples in result.samples.items():
            calls = figures.receive_calls(samples)
            counts = [sample["calls"] for sample in samples if "calls" in sample]
            table.add_row(
                side,
                "-" if calls is None else f"{calls:.2f}",
                _plain(of(result, side, share), ".1f"),
                ", ".join(f"{name} {count:.2f}" for name, count in counts[0].items())
                if counts
                else "-",
            )
    return table


def notes(results: Sequence[Result]) -> list[str]:
    """What a table can't show: cells without samples, samples that failed, a busy machine."""
    lines = [f"{r.cell.id}: not measured: {r.missing}" for r in results if r.missing]
    taken = [
        (result.cell.id, side, sample)
        for result in results
        for side, samples in result.samples.items()
        for sample in samples
    ]
    failures: dict[str, list[str]] = {}
    for name, side, sample in taken:
        if "error" in sample:
            failures.setdefault(f"{side}: {sample['error']}", []).append(name)
    for failure, names in failures.items():
        lines.append(f"{len(names)} samples failed, {failure} ({', '.join(dict.fromkeys(names))})")
    busy = [sample["others_cpus"] for _, _, sample in taken if "others_cpus" in sample]
    if busy and median(busy) > OTHERS_SHARE:
        lines.append(f"other programs kept {median(busy):.1f} CPUs busy meanwhile")
    return lines


def worst_line(results: Sequence[Result]) -> str:
    found = [one for one in map(choice, results) if one]
    if not found:
        return "no cell of the grid is complete"
    worst = max(found, key=lambda one: one.worst)
    over = sum(one.worst > 1.05 for one in found)
    return (
        f"{over} of {len(found)} cells are more than 5 % dearer or slower than the better; worst: "
        f"{worst.cell.id}, CPU {worst.dearer:.2f}, time {worst.slower:.2f} "
        f"({worst.better} is cheaper there)"
    )


def targets_table(found: Sequence[Verdict], everything: bool) -> Table:
    """Without `everything`, the grid's cells are left to the grid."""
    table = Table(title="targets", title_justify="left", title_style="bold", box=SIMPLE)
    for heading in ("target", "at most", "measured", "verdict"):
        table.add_column(heading, no_wrap=True)
    for verdict in found:
        if not everything and verdict.what.startswith("auto/"):
            continue
        if verdict.value is None:
            measured, text = "-", "not measured"
        else:
            measured = f"{verdict.value:.2f} {verdict.spread and f'({verdict.spread})'}"
            text = "[green]met[/green]" if verdict.met else "[red]missed[/red]"
        table.add_row(verdict.what, f"{verdict.bound:.2f}", measured, text)
    return table


def print_table(console: Console, name: str, results: Sequence[Result]) -> None:
    make = {"mapping": _mapping, "keep": _keep, "auto": _auto, "lowat": _lowat, "rpc": _rpc}
    console.print(TITLES[name], style="bold")
    console.print(make[name](results))
    lines = notes(results)
    if name == "auto":
        lines.append(worst_line(results))
    for line in lines:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def print_head(console: Console, stamp: dict[str, Any]) -> None:
    pair = stamp["cpus_used"]
    place = f"receiver on CPU {pair[0]}, sender on CPU {pair[1]}" if pair else "not pinned"
    versions = ", ".join(f"{k} {v}" for k, v in stamp["libraries"].items() if v)
    for line in (
        f"{stamp['date']}  {stamp['cpu']} × {stamp['cpus']}, Linux {stamp['kernel']}, "
        f"Python {stamp['python']}, {versions}, revision {stamp['revision']}",
        f"{stamp['rounds']} rounds, sides interleaved; {place}; "
        f"load average at the start {stamp['load_average'][0]:.1f}; "
        f"{'every byte hashed' if stamp['hash'] else 'nothing hashed'}",
        "CPU is the receiver's, with the letting go of what it kept; medians ± half the range "
        "between the quartiles (the extremes below 4 rounds); × are medians of ratios in a round",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
