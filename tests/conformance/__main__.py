"""`python -m tests.conformance`: run CPython's asyncio tests on a loop, and judge.

Exit status: 0 as expected, 1 not as expected, 2 can't run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from . import baseline, expectations, report, suite, supervisor
from .outcome import Outcome, Result
from .verdict import Verdict, judge

AGAIN_MAX = 10  # more than these don't fail by chance
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    add = parser.add_argument
    add("--loop", default="zcloop:new_event_loop", help="package.module:factory [%(default)s]")
    add("--compare", metavar="NAME", help="baseline whose passes must pass here, too")
    add("--expect", metavar="FILE", type=Path, help="[expected/<package of the loop>.toml, if any]")
    add("--module", "-m", action="append", help="only this module; may be repeated")
    add("--only", "-k", metavar="TEXT", help="only tests whose id contains TEXT")
    add("--run-all", action="store_true", help="run even what the expectation file says hangs")
    add("--workers", "-j", type=int, default=2, help="processes at a time [%(default)s]")
    add("--timeout", "-t", type=float, default=30.0, help="seconds without progress [%(default)s]")
    add("--json", metavar="FILE", type=Path, help="write every result")
    add("--record", metavar="NAME", help="write a baseline of what passes in every --repeat")
    add("--repeat", type=int, default=3, help="runs for --record [%(default)s]")
    add("--census", action="store_true", help="print where each class takes its loops from")
    add("--verbose", "-v", action="store_true", help="print each result as it comes")
    return parser.parse_args(argv)


class Run:
    """The tests that the arguments select, and how to run them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.package = args.loop.partition(":")[0].partition(".")[0]
        self.expectations = self._load_expectations()
        self.must_pass = (
            baseline.load(baseline.path_of(args.compare, VERSION)) if args.compare else frozenset()
        )
        modules = args.module or suite.present_modules()
        self.tests = {module: self._select(module) for module in modules}
        self.full = not (args.module or args.only)

    def _load_expectations(self) -> expectations.Expectations:
        path = self.args.expect or expectations.DIRECTORY / f"{self.package}.toml"
        if self.args.expect is None and not path.exists():
            return expectations.Expectations()
        return expectations.load(path, VERSION)

    def _select(self, module: str) -> list[str]:
        ids = supervisor.list_tests(self.args.loop, module)
        return [test_id for test_id in ids if not self.args.only or self.args.only in test_id]

    def once(self) -> dict[str, Result]:
        """Run the selected tests; those that hang by expectation are in the results as not run."""
        left_out: dict[str, Result] = {}
        if not self.args.run_all:
            for test_id in (i for ids in self.tests.values() for i in ids):
                entry = self.expectations.entry_for(test_id)
                if entry is not None and not entry.run:
                    left_out[test_id] = Result(test_id, Outcome.NOT_RUN, entry.reason)
        todo = {
            module: [test_id for test_id in ids if test_id not in left_out]
            for module, ids in self.tests.items()
        }
        return left_out | supervisor.run_modules(
            self.args.loop,
            todo,
            workers=self.args.workers,
            timeout=self.args.timeout,
            on_result=self._show if self.args.verbose else lambda result: None,
        )

    def again(self, results: dict[str, Result], problems: Collection[str]) -> dict[str, Result]:
        """Run what failed once more; the first results of those that pass then.

        `results` gets the second ones. Some of CPython's tests wait for 10 ms, within which a busy
        machine doesn't always do what it should; its own regrtest runs failures again as well.
        """
        failed = [name for name in problems if name in results and results[name].outcome.broken]
        if len(failed) > AGAIN_MAX:
            return {}
        todo: dict[str, list[str]] = {}
        for test_id in failed:
            todo.setdefault(results[test_id].module, []).append(test_id)
        second = supervisor.run_modules(
            self.args.loop,
            todo,
            workers=1,
            timeout=self.args.timeout,
            on_result=lambda result: None,
        )
        passed = [name for name in failed if second[name].outcome is Outcome.PASS]
        first = {name: results[name] for name in passed}
        results.update({name: second[name] for name in passed})
        return first

    def judge(self, results: dict[str, Result]) -> Verdict:
        return judge(
            results,
            self.expectations,
            must_pass=self.must_pass,
            known=[test_id for ids in self.tests.values() for test_id in ids],
            full=self.full,
        )

    @staticmethod
    def _show(result: Result) -> None:
        print(f"{result.outcome:8} {result.seconds:7.2f} {result.id}", flush=True)


def record(run: Run) -> int:
    """Run several times and keep what passed each time. Returns the exit status."""
    path = baseline.path_of(run.args.record, VERSION)
    runs = [run.once() for _ in range(run.args.repeat)]
    passed = baseline.always_passed(runs)
    baseline.save(path, run.package, passed)
    for line in report.sometimes(runs, passed):
        print(line)
    print(f"{path.name}: {len(passed)} tests passed in each of {len(runs)} runs")
    return 0


def check(run: Run) -> int:
    """Run once, print what came out, and judge it. Returns the exit status."""
    start = time.monotonic()
    results = run.once()
    verdict = run.judge(results)
    unsteady = run.again(results, verdict.problems)
    if unsteady:
        verdict = run.judge(results)
    if run.args.json:
        records = [result.to_json() for result in results.values()]
        run.args.json.write_text(json.dumps(records, indent=0), encoding="utf-8")
    sections = [
        report.by_module(results.values()),
        report.skips(results.values()),
        report.expected(verdict),
        report.unsteady(unsteady.values()),
        report.problems(verdict, results),
    ]
    if run.args.census:
        sections.insert(1, report.census(results.values()))
    for section in sections:
        text = "\n".join(section)
        if text:
            print(text, end="\n\n")
    seconds = time.monotonic() - start
    print(f"{run.args.loop} on Python {sys.version.split()[0]}, {seconds:.0f} s")
    print(report.last_line(verdict, results.values()))
    return 0 if verdict.ok else 1


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    try:
        run = Run(args)
    except (RuntimeError, ValueError, OSError, ImportError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    return record(run) if args.record else check(run)


if __name__ == "__main__":
    sys.exit(main())
