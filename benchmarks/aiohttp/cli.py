"""``python -m benchmarks.aiohttp``: the runner of the other benchmarks over these cases."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import build, environment, report, results
from ..cases import Case, select
from ..runner import Result, run_case
from ..sample import ROOT, Setting, default_cpus
from ..sides import Side, why_missing
from .cases import SIDES, TARGETS, all_cases


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.aiohttp",
        description="aiohttp servers on different loops, and its bodies read in different ways.",
    )
    parser.add_argument(
        "--only", action="append", metavar="CASE", help="by id, shell pattern or beginning"
    )
    parser.add_argument("--list", action="store_true", help="print the case ids and end")
    parser.add_argument("--show", type=Path, metavar="FILE", help="an earlier run's raw data again")
    parser.add_argument("--sides", help=f"instead of each case's own; of {', '.join(SIDES)}")
    parser.add_argument("--rounds", type=int, default=5, help="samples per side (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="per sample (2)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds, not counted (0.5)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="raw data also to this file")
    return parser.parse_args(arguments)


def _run(
    options: argparse.Namespace, cases: list[Case]
) -> tuple[dict[str, Any], list[Result], dict[str, str]]:
    setting = Setting(options.seconds, options.warmup, default_cpus())
    names = {name for case in cases for name in case.sides}
    reasons = {name: why_missing(SIDES[name], str(ROOT)) for name in sorted(names)}
    missing = {name: reason for name, reason in reasons.items() if reason}
    stamp = environment.describe() | {
        "rounds": options.rounds,
        "seconds": setting.seconds,
        "warmup": setting.warmup,
        "cpus_used": setting.cpus,
    }
    stamp["libraries"]["aiohttp"] = importlib.metadata.version("aiohttp")
    console = report.console()
    report.print_head(console, stamp, missing)
    finished: list[Result] = []
    started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    outputs = [results.RESULTS / f"aiohttp-{started}.json"]
    outputs += [options.json] if options.json else []

    def progress(case: Case, number: int, side: Side, record: dict[str, Any]) -> None:
        if console.is_terminal:
            report.print_passing(console, f"{case.id}  {number + 1}/{options.rounds}  {side.name}")

    for case in cases:
        present = [SIDES[name] for name in case.sides if name not in missing]
        if not present:
            continue
        finished.append(run_case(case, present, options.rounds, setting, progress))
        for path in outputs:
            results.save(path, stamp, finished, missing)
        report.print_case(console, finished[-1], {})
    for path in outputs:
        console.print(f"raw data: {path}", highlight=False, soft_wrap=True)
    return stamp, finished, missing


def main(arguments: list[str] | None = None) -> int:
    options = _arguments(arguments)
    console = report.console()
    if options.show:
        stamp, finished, missing = results.load(options.show)
        report.print_head(console, stamp, missing)
        for result in finished:
            report.print_case(console, result, {})
    else:
        cases = select(all_cases(), options.only) if options.only else all_cases()
        if options.sides:
            chosen = tuple(options.sides.split(","))
            if unknown := set(chosen) - SIDES.keys():
                print(f"unknown sides: {', '.join(sorted(unknown))}; known: {', '.join(SIDES)}")
                return 2
            cases = [replace(case, sides=chosen) for case in cases]
        if options.list:
            print("\n".join(case.id for case in cases))
            return 0
        if importlib.util.find_spec("aiohttp") is None:
            why = "which isn't installed: pip install -e '.[bench]'"
            print(f"these benchmarks need aiohttp, {why}", file=sys.stderr)
            return 2
        try:
            build.loadgen()
        except build.BuildError as error:
            print(error, file=sys.stderr)
            return 2
        _, finished, _ = _run(options, cases)
    table, _ = report.gate_table(finished, TARGETS)
    console.print(table)
    return 0
