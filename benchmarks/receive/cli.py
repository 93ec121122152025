"""``python -m benchmarks.receive``: chooses cells, runs them, prints tables, keeps raw data."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import build, environment
from .. import report as common
from .. import results as folder
from ..arguments import count
from ..cases import MIB
from ..sample import default_cpus
from ..terminal import Console
from . import report, store
from .cells import TABLES, Cell, Side, all_cells, quick_cells, select
from .figures import Verdict, verdicts
from .run import Result, rounds_of, run, wanted_rounds
from .sample import Setting


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.receive",
        description="Receiving with and without a copy: zcloop beside C, uvloop and asyncio.",
        epilog="The cells mapping/veth-* need root, and rpc needs strace; without, they say so.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="the main cells; two minutes (default)")
    what.add_argument("--full", action="store_true", help="all cells; about half an hour")
    what.add_argument(
        "--only",
        action="append",
        metavar="CELL",
        help=f"cells by id, shell pattern or beginning ({', '.join(TABLES)}); may be repeated",
    )
    what.add_argument("--list", action="store_true", help="print the cells' ids and end")
    what.add_argument("--show", type=Path, metavar="FILE", help="an earlier run's raw data again")
    parser.add_argument("--rounds", type=count, help="samples per side (quick: 1, otherwise 5)")
    parser.add_argument("--mib", type=int, help="MiB a sample, instead of each cell's own")
    parser.add_argument(
        "--hash", action=argparse.BooleanOptionalAction, default=True, help="hash every byte"
    )
    parser.add_argument(
        "--pin",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a CPU for the receiver and one for the sender (default where there are two)",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="raw data also to this file")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="add to an earlier run's raw data the cells and rounds that it lacks, and print all",
    )
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="begin no cell after so long; see --resume"
    )
    parser.add_argument("--targets", action="store_true", help="every target, the grid's too")
    parser.add_argument("--strict", action="store_true", help="status 1 unless all are met")
    return parser.parse_args(arguments)


def _choose(options: argparse.Namespace) -> list[Cell]:
    if options.only:
        cells = select(all_cells(), options.only)
    elif options.full or options.list:
        cells = all_cells()
    else:
        cells = quick_cells()
    if options.mib:
        cells = [cell if cell.strace else replace(cell, nbytes=options.mib * MIB) for cell in cells]
    return cells


def main(arguments: list[str] | None = None) -> int:
    options = _arguments(arguments)
    console = common.console()
    if options.show:
        stamp, results = store.load(options.show)
        report.print_head(console, stamp)
        for name in TABLES:
            _print_table(console, name, results)
        return _conclude(options, console, results)
    cells = _choose(options)
    if options.list:
        print("\n".join(cell.id for cell in cells))
        return 0
    if not cells:
        print("no cell matches; --list prints them all", file=sys.stderr)
        return 2
    try:
        build.reference()
        build.reference_hash()
    except build.BuildError as error:
        print(error, file=sys.stderr)
        return 2
    # So that namespaces and processes are removed whichever way the run ends.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return _conclude(options, console, _measure(options, console, cells))
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_table(console: Console, name: str, results: Sequence[Result]) -> None:
    if of_table := [result for result in results if result.cell.table == name]:
        report.print_table(console, name, of_table)


def _measure(
    options: argparse.Namespace, console: Console, cells: Sequence[Cell]
) -> list[Result]:
    rounds = options.rounds or (5 if options.full or options.only else 1)
    setting = Setting(default_cpus() if options.pin else None, options.hash)
    stamp: dict[str, Any] = environment.describe() | {
        "rounds": rounds,
        "cpus_used": setting.cpus,
        "hash": setting.hash,
    }
    began, started = time.monotonic(), time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    outputs = [options.resume or folder.RESULTS / f"receive-{started}.json"]
    outputs += [options.json] if options.json else []
    results: dict[str, Result] = {}
    if options.resume and options.resume.exists():
        results = {result.cell.id: result for result in store.load(options.resume)[1]}
    report.print_head(console, stamp)

    def progress(cell: Cell, number: int, side: Side) -> None:
        if console.is_terminal:
            common.print_passing(console, f"{cell.id}  {number + 1}/{rounds}  {side.name}")

    def finished(result: Result) -> None:
        results[result.cell.id] = result
        for path in outputs:
            store.save(path, stamp, list(results.values()))

    def enough() -> bool:
        return options.seconds is not None and time.monotonic() - began > options.seconds

    for name in TABLES:
        due = [
            cell
            for cell in cells
            if cell.table == name
            and (cell.id not in results or _lacks(results[cell.id], cell, rounds))
        ]
        run(due, rounds, setting, progress, finished, results, enough)
        if console.is_terminal:
            common.print_passing(console)
        _print_table(console, name, in_order(results))
    for path in outputs:
        console.print(f"raw data: {path}", highlight=False, soft_wrap=True)
    return in_order(results)


def _lacks(result: Result, cell: Cell, rounds: int) -> bool:
    return rounds_of(result) < wanted_rounds(cell, rounds)


def in_order(results: Mapping[str, Result]) -> list[Result]:
    """As --list has them, and behind those any that it no longer has."""
    known = [cell.id for cell in all_cells() if cell.id in results]
    return [results[one] for one in dict.fromkeys([*known, *results])]


def _conclude(
    options: argparse.Namespace, console: Console, results: Sequence[Result]
) -> int:
    found: list[Verdict] = [verdict for result in results for verdict in verdicts(result)]
    console.print(report.targets_table(found, options.targets))
    failed = sum(not verdict.met for verdict in found)
    console.print(f"{len(found) - failed} of {len(found)} targets met", highlight=False)
    return 1 if failed and options.strict else 0
