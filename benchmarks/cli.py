"""``python -m benchmarks``: chooses cases and sides, runs them, prints tables, keeps raw data."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import build, markdown, report
from .arguments import count, positive
from .cases import Case, all_cases, quick_cases, select
from .runner import Result
from .sample import Setting, default_cpus
from .session import Session, missing_of, show
from .sides import BASE, SIDES, Side, parse_side, why_unsuited
from .targets import TARGETS
from .terminal import Console


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Event loops compared: unchanged asyncio servers, one load generator in C.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="the main cases, 5 minutes (default)")
    what.add_argument("--full", action="store_true", help="the whole matrix; under two hours")
    what.add_argument(
        "--only",
        action="append",
        metavar="CASE",
        help="cases of the whole matrix by id, shell pattern or beginning; may be repeated",
    )
    what.add_argument("--list", action="store_true", help="print the case ids and end")
    what.add_argument("--show", type=Path, metavar="FILE", help="an earlier run's raw data again")
    parser.add_argument(
        "--sides",
        metavar="A,B",
        help=f"instead of each case's own; of {', '.join(SIDES)}; +KEY=VALUE adds an environment "
        "variable, as in zcloop+ZCLOOP_RECEIVE=copy",
    )
    parser.add_argument("--rounds", type=count, help="samples per side (quick: 3, otherwise 5)")
    parser.add_argument("--seconds", type=positive, help="per sample (quick: 1, otherwise 2)")
    parser.add_argument("--warmup", type=float, default=0.3, help="seconds, not counted (0.3)")
    parser.add_argument(
        "--pin",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a CPU for the server and one for the load generator (default where there are two)",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="raw data also to this file")
    parser.add_argument("--markdown", type=Path, metavar="OUT", help="the tables for a document")
    parser.add_argument(
        "--gate", action="store_true", help="judge the targets; alone, it runs just their cases"
    )
    parser.add_argument(
        "--strict", action="store_true", help="with --gate: status 1 unless all targets are met"
    )
    return parser.parse_args(arguments)


def _target_cases() -> list[Case]:
    """The cases that have a target, on the sides that it compares."""
    wanted: dict[str, set[str]] = {}
    for target in TARGETS:
        wanted.setdefault(target.case, {BASE}).add(target.side)
    return [
        replace(case, sides=tuple(side for side in SIDES if side in wanted[case.id]))
        for case in all_cases()
        if case.id in wanted
    ]


def _choose_cases(options: argparse.Namespace) -> list[Case]:
    if options.only:
        cases = select(all_cases(), options.only)
    elif options.full or options.list:
        cases = all_cases()
    elif options.gate and not options.quick:
        cases = _target_cases()
    else:
        cases = quick_cases()
    if options.sides:
        cases = [replace(case, sides=tuple(options.sides.split(","))) for case in cases]
    return cases


def main(arguments: list[str] | None = None) -> int:
    options = _arguments(arguments)
    console = report.console()
    if options.show:
        return _conclude(options, console, *show(console, options.show))
    cases = _choose_cases(options)
    if options.list:
        print("\n".join(case.id for case in cases))
        return 0
    if not cases:
        print("no case matches; --list prints them all", file=sys.stderr)
        return 2
    try:
        sides = {name: parse_side(name) for case in cases for name in case.sides}
        build.loadgen()
        build.c_server("cecho")
    except (ValueError, build.BuildError) as error:
        print(error, file=sys.stderr)
        return 2
    stamp, finished = _run(options, console, cases, sides)
    return _conclude(options, console, stamp, finished)


def _absent(case: Case, sides: dict[str, Side], missing: dict[str, str]) -> dict[str, str]:
    """The sides of the case that can't run, with the reason."""
    reasons = {name: why_unsuited(sides[name], case.kind) for name in case.sides}
    unsuited = {name: reason for name, reason in reasons.items() if reason}
    lost = {name: "not here (see the top)" for name in case.sides if name in missing}
    return unsuited | lost


def _run(
    options: argparse.Namespace, console: Console, cases: list[Case], sides: dict[str, Side]
) -> tuple[dict[str, Any], list[Result]]:
    short = not (options.full or options.only or options.gate)
    rounds = options.rounds or (3 if short else 5)
    cpus = default_cpus() if options.pin else None
    setting = Setting(options.seconds or (1.0 if short else 2.0), options.warmup, cpus)
    missing = missing_of(sides)
    session = Session(console, rounds, setting, options.json, missing=missing)
    for case in cases:
        absent = _absent(case, sides, missing)
        present = [sides[name] for name in case.sides if name not in absent]
        if present:
            report.print_case(console, session.measure(case, present), absent)
    session.end()
    return session.stamp, session.finished


def _conclude(
    options: argparse.Namespace, console: Console, stamp: dict[str, Any], finished: list[Result]
) -> int:
    if options.markdown:
        options.markdown.write_text(markdown.document(stamp, finished))
    if not options.gate:
        return 0
    table, failed = report.gate_table(finished)
    console.print(table)
    return 1 if failed and options.strict else 0
