"""``python -m benchmarks.aiohttp``: the runner of the other benchmarks over these cases."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from .. import build, report
from ..arguments import count, positive
from ..cases import Case, select
from ..runner import Result
from ..sample import Setting, default_cpus
from ..session import Session, missing_of, show
from ..terminal import Console
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
    parser.add_argument("--rounds", type=count, default=5, help="samples per side (5)")
    parser.add_argument("--seconds", type=positive, default=2.0, help="per sample (2)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds, not counted (0.5)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="raw data also to this file")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace, console: Console, cases: list[Case]) -> list[Result]:
    setting = Setting(options.seconds, options.warmup, default_cpus())
    names = sorted({name for case in cases for name in case.sides})
    missing = missing_of({name: SIDES[name] for name in names})
    version = {"aiohttp": importlib.metadata.version("aiohttp")}
    session = Session(
        console, options.rounds, setting, options.json, "aiohttp-", missing, version
    )
    for case in cases:
        present = [SIDES[name] for name in case.sides if name not in missing]
        if present:
            report.print_case(console, session.measure(case, present), {})
    session.end()
    return session.finished


def main(arguments: list[str] | None = None) -> int:
    options = _arguments(arguments)
    console = report.console()
    if options.show:
        _, finished = show(console, options.show)
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
        finished = _run(options, console, cases)
    table, _ = report.gate_table(finished, TARGETS)
    console.print(table)
    return 0
