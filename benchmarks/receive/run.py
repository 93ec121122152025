"""Runs cells: sides interleaved, every raw sample kept, namespaces made and removed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from .cells import Cell, Side
from .netns import LOOPBACK, NamespaceError, Route, veth
from .sample import Setting, calls_per_message, take

Samples = list[dict[str, Any]]  # one per round
Progress = Callable[[Cell, int, Side], None]


@dataclass
class Result:
    """The samples of one cell, ``samples[side][round]``, or why there are none."""

    cell: Cell
    samples: dict[str, Samples] = field(default_factory=dict)
    missing: str = ""


def _route(mtu: int) -> AbstractContextManager[Route]:
    return veth(mtu) if mtu else nullcontext(LOOPBACK)


def wanted_rounds(cell: Cell, rounds: int) -> int:
    """Calls are counted, not timed: once is enough."""
    return 1 if cell.strace else rounds


def rounds_of(result: Result) -> int:
    """How many it has samples of; each round is one of every side."""
    return min((len(samples) for samples in result.samples.values()), default=0)


def _run_cell(
    result: Result, rounds: int, setting: Setting, route: Route, progress: Progress
) -> Result:
    """Adds the rounds that are missing; each begins with another side."""
    cell = result.cell
    if cell.strace and shutil.which("strace") is None:
        return Result(cell, missing="it needs strace (apt install strace)")
    result.samples = {side.name: result.samples.get(side.name, []) for side in cell.sides}
    for number in range(rounds_of(result), wanted_rounds(cell, rounds)):
        start = number % len(cell.sides)
        for side in (*cell.sides[start:], *cell.sides[:start]):
            progress(cell, number, side)
            sampled = calls_per_message if cell.strace else take
            result.samples[side.name].append(sampled(cell, side, setting, route))
    return result


def run(
    cells: Sequence[Cell],
    rounds: int,
    setting: Setting,
    progress: Progress,
    finished: Callable[[Result], None],
    earlier: Mapping[str, Result] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Cells with the same route are neighbours and share it.

    `earlier` holds what an earlier run has of some of them, by id: it gets the rounds that it
    lacks. No cell is begun when `enough` says so.
    """
    for mtu, group in groupby(cells, key=lambda cell: cell.mtu):
        neighbours = list(group)
        try:
            with _route(mtu) as route:
                for cell in neighbours:
                    if enough():
                        return
                    start = (earlier or {}).get(cell.id) or Result(cell)
                    finished(_run_cell(start, rounds, setting, route, progress))
        except NamespaceError as error:
            for cell in neighbours:
                finished(Result(cell, missing=str(error)))
