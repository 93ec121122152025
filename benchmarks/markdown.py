"""The same figures as Markdown, for a document: one row per case and side."""

from __future__ import annotations

from typing import Any

from .measure import Samples, absolute, ratio
from .report import headline
from .runner import Result
from .sides import BASE

HEADER = (
    f"| case | side | rate | server CPU | p99 µs | rate ×{BASE} | CPU ×{BASE} |\n"
    "|---|---|--:|--:|--:|--:|--:|\n"
)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _row(result: Result, side: str, samples: Samples) -> str:
    case = result.case
    base = result.samples.get(BASE)
    cells = [case.id, side]
    idle = case.id.startswith("idle/")
    if idle:
        memory = absolute(case, samples, "memory")
        cells += [f"{_plain(memory.median)} B/connection" if memory else "failed", "-", "-"]
    else:
        rate, cpu = absolute(case, samples, "rate"), absolute(case, samples, "cpu")
        p99 = absolute(case, samples, "p99")
        cells.append(f"{_plain(rate.median)} {case.unit}/s" if rate else "failed")
        cells.append(f"{_plain(cpu.median)} µs/{case.unit}" if cpu else "-")
        cells.append(_plain(p99.median) if p99 else "-")
    for metric in ("memory",) if idle else ("rate", "cpu"):
        figure = ratio(case, samples, base, metric) if base else None
        cells.append(f"{figure.median:.2f}" if figure else "-")
    if idle:
        cells[-1] += " (memory)"
        cells.append("-")
    return "| " + " | ".join(cells) + " |\n"


def document(stamp: dict[str, Any], results: list[Result]) -> str:
    """The headline as a paragraph, then the table; losses are rows like the others."""
    rows = [_row(r, side, samples) for r in results for side, samples in r.samples.items()]
    return "  \n".join(headline(stamp)) + "\n\n" + HEADER + "".join(rows)
