"""What a run prints."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from .outcome import Outcome, Result
from .verdict import Verdict

COLUMNS = [outcome for outcome in Outcome if outcome is not Outcome.XPASS]
DETAIL_LINES = 12


def by_module(results: Iterable[Result]) -> Iterator[str]:
    """A table: outcomes, tests that used the factory, and seconds, for each module."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    for result in results:
        counts[result.module][result.outcome] += 1
        counts[result.module]["on loop"] += result.loops > 0
        seconds[result.module] += result.seconds  # type: ignore[assignment]
    columns = [*COLUMNS, "on loop"]
    yield f"{'module':26}" + "".join(f"{column:>8}" for column in columns) + f"{'secs':>8}"
    for module in sorted(counts):
        cells = "".join(f"{counts[module][column] or '':>8}" for column in columns)
        yield f"{module:26}{cells}{seconds[module]:8.1f}"


def census(results: Iterable[Result]) -> Iterator[str]:
    """Where each test class takes its loops from: the answer to "is it the factory's?"."""
    classes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        source = "factory" if result.loops else "own" if result.own_loops else "none"
        classes[result.id.rpartition(".")[0]][source] += 1
    yield f"{'class':72}{'factory':>8}{'own':>8}{'none':>8}"
    for name, count in sorted(classes.items()):
        yield f"{name:72}{count['factory']:8}{count['own']:8}{count['none']:8}"


def skips(results: Iterable[Result]) -> Iterator[str]:
    """The reasons for which tests were skipped, with their number."""
    reasons = Counter(r.detail.strip() for r in results if r.outcome is Outcome.SKIP)
    for reason, count in reasons.most_common():
        yield f"{count:5} skipped: {' '.join(reason.split())}"


def expected(verdict: Verdict) -> Iterator[str]:
    """The failures that are expected, by reason."""
    for entry, found in verdict.expected.items():
        yield f"{len(found):5} expected: {entry.reason}"


def sometimes(runs: Sequence[Mapping[str, Result]], passed: Collection[str]) -> Iterator[str]:
    """The tests that passed in some of `runs` but aren't in `passed`, and how they failed."""
    for test_id in runs[0]:
        found = [run[test_id] for run in runs if test_id in run]
        failures = [result for result in found if result.outcome is not Outcome.PASS]
        if test_id not in passed and len(failures) < len(found):
            yield f"passed in some runs only: {test_id}: {failures[0].outcome}"
            yield from _tail(failures[0])


def unsteady(first: Iterable[Result]) -> Iterator[str]:
    """The tests that passed when they were run again, and how they failed at first."""
    for result in first:
        yield f"passed when it was run again: {result.id}: {result.outcome}"
        yield from _tail(result)


def problems(verdict: Verdict, results: Mapping[str, Result]) -> Iterator[str]:
    """Everything that isn't as it should be, with the end of its traceback."""
    last: list[str] = []
    for name, problem in sorted(verdict.problems.items()):
        yield f"{name}: {problem}"
        result = results.get(name)
        if result and result.outcome is not Outcome.PASS:
            detail = list(_tail(result))
            yield from detail if detail != last else ["    (as above)"]
            last = detail
    if verdict.below_floor:
        yield verdict.below_floor


def _tail(result: Result) -> Iterator[str]:
    for line in result.detail.rstrip().splitlines()[-DETAIL_LINES:]:
        yield f"    {line}"


def last_line(verdict: Verdict, results: Iterable[Result]) -> str:
    """`N passed, N failed, N skipped`; failed are the unexpected ones."""
    count = Counter(result.outcome for result in results)
    failed = len(verdict.problems) + bool(verdict.below_floor)
    return f"{count[Outcome.PASS]} passed, {failed} failed, {count[Outcome.SKIP]} skipped"
