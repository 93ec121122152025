"""One run of a benchmark command: its head, case after case, and raw data kept after each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import environment, report, results
from .cases import Case
from .runner import Result, run_case
from .sample import ROOT, Setting
from .sides import Side, why_missing
from .terminal import Console


class Session:
    """`copy`: a second file for the raw data; `missing`: sides without a loop here, and why."""

    def __init__(
        self,
        console: Console,
        rounds: int,
        setting: Setting,
        copy: Path | None,
        name: str = "",
        missing: dict[str, str] | None = None,
        libraries: dict[str, str] | None = None,
    ) -> None:
        self.console = console
        self.rounds = rounds
        self.setting = setting
        self.missing = missing or {}
        self.stamp: dict[str, Any] = environment.describe() | {
            "rounds": rounds,
            "seconds": setting.seconds,
            "warmup": setting.warmup,
            "cpus_used": setting.cpus,
        }
        self.stamp["libraries"] |= libraries or {}
        self.finished: list[Result] = []
        started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self._outputs = [results.RESULTS / f"{name}{started}.json", *([copy] if copy else [])]
        report.print_head(console, self.stamp, self.missing)

    def measure(self, case: Case, sides: Sequence[Side], setting: Setting | None = None) -> Result:
        """Run the case, under its own setting if there is one, and keep what came of it."""
        result = run_case(case, sides, self.rounds, setting or self.setting, self._progress)
        self.finished.append(result)
        for path in self._outputs:
            results.save(path, self.stamp, self.finished, self.missing)
        return result

    def end(self) -> None:
        """Say where the raw data is, if there is any."""
        for path in self._outputs if self.finished else ():
            self.console.print(f"raw data: {path}", highlight=False, soft_wrap=True)

    def _progress(self, case: Case, number: int, side: Side, record: dict[str, Any]) -> None:
        if self.console.is_terminal:
            text = f"{case.id}  {number + 1}/{self.rounds}  {side.name}"
            report.print_passing(self.console, text)


def missing_of(sides: Mapping[str, Side]) -> dict[str, str]:
    """Those of the sides that have no loop to offer here, with the reason."""
    reasons = {name: why_missing(side, str(ROOT)) for name, side in sides.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def show(console: Console, path: Path) -> tuple[dict[str, Any], list[Result]]:
    """Print what an earlier run has kept; its stamp and results."""
    stamp, finished, missing = results.load(path)
    report.print_head(console, stamp, missing)
    for result in finished:
        report.print_case(console, result, {})
    return stamp, finished
