"""Compare a run with what is expected of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from . import suite
from .expectations import Entry, Expectations
from .outcome import Outcome, Result


@dataclass(slots=True)
class Verdict:
    """What is wrong with a run, and what is wrong with it as expected.

    `problems` maps a test id, or a pattern of the expectation file, to what is the matter.
    """

    problems: dict[str, str] = field(default_factory=dict)
    expected: dict[Entry, list[Result]] = field(default_factory=dict)
    below_floor: str = ""

    @property
    def ok(self) -> bool:
        return not self.problems and not self.below_floor


def judge(
    results: Mapping[str, Result],
    expectations: Expectations,
    *,
    must_pass: Collection[str] = (),
    known: Collection[str] = (),
    full: bool = False,
) -> Verdict:
    """The verdict on `results` (by id).

    `must_pass` are the ids that pass elsewhere: only an entry that calls them flaky excuses them
    here, and those that this Python doesn't have are no matter. `known` are all ids that were
    found, with those that didn't run; `full` says that nothing was left out by hand, so that
    counts and stale patterns mean something.
    """
    verdict = Verdict()
    for test_id, result in results.items():
        entry = expectations.entry_for(test_id)
        problem = _problem(result, entry, test_id in must_pass)
        if problem:
            verdict.problems[test_id] = problem
        elif entry and (result.outcome.broken or result.outcome is Outcome.NOT_RUN):
            verdict.expected.setdefault(entry, []).append(result)
    if full:
        for entry in expectations.entries:
            for pattern in entry.idle_patterns(known):
                verdict.problems[pattern] = "stale: no such test"
        passed = sum(result.outcome is Outcome.PASS for result in results.values())
        # The floor doesn't depend on luck.
        unlucky = sum(len(found) for entry, found in verdict.expected.items() if entry.flaky)
        if passed + unlucky < expectations.floor:
            verdict.below_floor = f"{passed} passed, at least {expectations.floor} must"
    return verdict


def _problem(result: Result, entry: Entry | None, must_pass: bool) -> str:
    """What is wrong with one result; an empty string if nothing is."""
    outcome = result.outcome
    flaky = entry is not None and entry.flaky
    if must_pass and outcome is not Outcome.PASS and not flaky:
        return f"{outcome}, but passes on the baseline"
    if entry is None:
        if outcome.broken:
            return f"{outcome}, and not expected to"
    elif outcome is Outcome.PASS and not flaky:
        return f"stale: passes, although expected to fail ({entry.reason})"
    if result.own_loops and not result.loops and not suite.makes_own_loops(result.id):
        return "makes a loop of asyncio's own instead of the factory's"
    return ""
