"""Interleaves the sides of each case, and keeps every raw sample."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import build
from .cases import MIB, Case
from .measure import Samples
from .sample import Setting, take
from .servers.pattern import pattern
from .sides import Side


@dataclass
class Result:
    """The samples of one case: ``samples[side][round]``."""

    case: Case
    samples: dict[str, Samples] = field(default_factory=dict)


Progress = Callable[[Case, int, Side, dict[str, Any]], None]


def data_file(case: Case) -> Path | None:
    """The file that a sendfile case serves: the pattern of 1 MiB, repeated; made once, kept."""
    if not case.file_bytes:
        return None
    path = build.BUILD / f"file-{case.file_bytes}"
    if not path.exists() or path.stat().st_size != case.file_bytes:
        build.BUILD.mkdir(exist_ok=True)
        piece = pattern(MIB)
        with open(path, "wb") as file:
            for _ in range(case.file_bytes // MIB):
                file.write(piece)
            # Its writeback is not to go on behind the samples.
            os.fsync(file.fileno())
    # Into the page cache, or the first side would pay for the disk.
    with open(path, "rb") as file:
        while file.read(MIB):
            pass
    return path


def run_case(
    case: Case, sides: Sequence[Side], rounds: int, setting: Setting, progress: Progress
) -> Result:
    """Rounds of one sample per side; each round begins with another side."""
    result = Result(case, {side.name: [] for side in sides})
    file = data_file(case)
    for number in range(rounds):
        start = number % len(sides)
        for side in [*sides[start:], *sides[:start]]:
            record = take(case, side, setting, file)
            result.samples[side.name].append(record)
            progress(case, number, side, record)
    return result
