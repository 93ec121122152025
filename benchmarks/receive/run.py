"""Runs cells: sides interleaved, every raw sample kept, namespaces made and removed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
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


def _run_cell(
    cell: Cell, rounds: int, setting: Setting, route: Route, progress: Progress
) -> Result:
    """Each round begins with another side."""
    if cell.strace and shutil.which("strace") is None:
        return Result(cell, missing="it needs strace (apt install strace)")
    result = Result(cell, {side.name: [] for side in cell.sides})
    # Calls are counted, not timed: once is enough.
    for number in range(1 if cell.strace else rounds):
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
) -> None:
    """Cells with the same route are neighbours and share it."""
    for mtu, group in groupby(cells, key=lambda cell: cell.mtu):
        neighbours = list(group)
        try:
            with _route(mtu) as route:
                for cell in neighbours:
                    finished(_run_cell(cell, rounds, setting, route, progress))
        except NamespaceError as error:
            for cell in neighbours:
                finished(Result(cell, missing=str(error)))
