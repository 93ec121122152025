"""The runner itself: a run that is judged wrongly is worse than none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from . import baseline, expectations, report, suite, supervisor
from .__main__ import main
from .expectations import Entry, Expectations
from .outcome import Outcome, Result
from .verdict import judge

STOCK = "asyncio:SelectorEventLoop"

MISBEHAVING = """
import asyncio, os, sys, unittest

class First(unittest.TestCase):
    def test_1_pass(self): pass
    def test_2_crash(self): os._exit(3)
    def test_3_skip(self): self.skipTest("because")
    def test_4_hang(self):
        while True:
            pass
    def test_5_fail(self): self.assertEqual(1, 2)

class Second(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise OSError("no room")
    def test_1(self): pass

class Third(unittest.TestCase):
    def test_1_policy(self): asyncio.new_event_loop().close()
    def test_2_own(self): asyncio.SelectorEventLoop().close()
    @unittest.expectedFailure
    def test_3_xfail(self): self.fail()
    @unittest.expectedFailure
    def test_4_xpass(self): pass
    def test_5_exit(self): sys.exit()
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """MISBEHAVING, run in workers. A dotted module name is imported as it is."""
    directory = tmp_path_factory.mktemp("path")
    package = directory / "misbehaving"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("tests.py").write_text(MISBEHAVING)
    module = "misbehaving.tests"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "IMPORT_PATH", (*supervisor.IMPORT_PATH, directory))
        ids = supervisor.list_tests(STOCK, module)
        return supervisor.run_modules(
            STOCK, {module: ids}, workers=1, timeout=5.0, on_result=lambda result: None
        )


def test_one_hang_and_one_crash_mark_one_test_each(results: dict[str, Result]) -> None:
    outcomes = {
        test_id.removeprefix("misbehaving.tests."): r.outcome for test_id, r in results.items()
    }
    assert outcomes == {
        "First.test_1_pass": Outcome.PASS,
        "First.test_2_crash": Outcome.CRASH,
        "First.test_3_skip": Outcome.SKIP,
        "First.test_4_hang": Outcome.TIMEOUT,
        "First.test_5_fail": Outcome.FAIL,
        "Second.test_1": Outcome.ERROR,
        "Third.test_1_policy": Outcome.PASS,
        "Third.test_2_own": Outcome.PASS,
        "Third.test_3_xfail": Outcome.XFAIL,
        "Third.test_4_xpass": Outcome.XPASS,
        "Third.test_5_exit": Outcome.ERROR,
    }
    assert "no room" in results["misbehaving.tests.Second.test_1"].detail
    assert results["misbehaving.tests.First.test_3_skip"].detail == "because"
    assert "1 != 2" in results["misbehaving.tests.First.test_5_fail"].detail


def test_loops_are_counted_by_their_source(results: dict[str, Result]) -> None:
    policy = results["misbehaving.tests.Third.test_1_policy"]
    own = results["misbehaving.tests.Third.test_2_own"]
    assert policy.loops == 1
    assert (own.loops, own.own_loops) == (0, 1)
    problems = judge(results, Expectations()).problems
    assert "asyncio's own" in problems[own.id]
    assert policy.id not in problems


def test_a_module_that_cannot_be_loaded_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="No module named 'no_such'"):
        supervisor.list_tests(STOCK, "no_such.module")


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("asyncio", ValueError),
        ("asyncio:", ValueError),
        ("sys:maxsize", ValueError),
        ("asyncio:nothing", AttributeError),
        ("no_such:thing", ImportError),
    ],
)
def test_factory_paths(path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        suite.resolve(path)


def judged(outcome: Outcome, entry: Entry | None = None, must_pass: bool = False) -> str:
    """The problem that `judge` finds in the one test `m.C.t`, or an empty string."""
    verdict = judge(
        {"m.C.t": Result("m.C.t", outcome)},
        Expectations([entry] if entry else []),
        must_pass={"m.C.t"} if must_pass else (),
    )
    return verdict.problems.get("m.C.t", "")


FAILS = Entry("a reason", ("m.C.*",))
FLAKY = Entry("a reason", ("m.C.*",), flaky=True)


def test_what_is_a_problem() -> None:
    assert judged(Outcome.PASS) == ""
    assert judged(Outcome.SKIP) == ""
    assert "not expected" in judged(Outcome.FAIL)
    assert "not expected" in judged(Outcome.XPASS)
    assert judged(Outcome.FAIL, FAILS) == ""
    assert judged(Outcome.NOT_RUN, FAILS) == ""
    assert "stale" in judged(Outcome.PASS, FAILS)
    assert judged(Outcome.PASS, FLAKY) == ""
    assert judged(Outcome.TIMEOUT, FLAKY) == ""


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.SKIP, Outcome.NOT_RUN, Outcome.CRASH])
def test_what_passes_on_the_baseline_has_no_excuse(outcome: Outcome) -> None:
    assert "baseline" in judged(outcome, FAILS, must_pass=True)
    assert "baseline" in judged(outcome, must_pass=True)


def test_flaky_there_may_be_flaky_here() -> None:
    assert judged(Outcome.FAIL, FLAKY, must_pass=True) == ""
    assert judged(Outcome.PASS, must_pass=True) == ""


def test_floor_and_idle_patterns_count_in_a_full_run_only() -> None:
    results = {"m.C.t": Result("m.C.t", Outcome.PASS)}
    wanted = Expectations([Entry("gone", ("m.Old.*",))], floor=2)
    full = judge(results, wanted, known=results, full=True)
    assert full.problems == {"m.Old.*": "stale: no such test"}
    assert full.below_floor == "1 passed, at least 2 must"
    assert not full.ok
    assert judge(results, wanted, known=results).ok


def test_the_floor_does_not_depend_on_luck() -> None:
    results = {"m.C.t": Result("m.C.t", Outcome.FAIL)}
    assert judge(results, Expectations([FLAKY], floor=1), known=results, full=True).ok
    assert not judge(results, Expectations([FAILS], floor=1), known=results, full=True).ok


def test_last_line_counts_unexpected_failures_only() -> None:
    results = [
        Result("m.C.a", Outcome.PASS),
        Result("m.C.b", Outcome.FAIL),
        Result("m.D.c", Outcome.FAIL),
        Result("m.D.d", Outcome.SKIP, "no"),
    ]
    by_id = {result.id: result for result in results}
    verdict = judge(by_id, Expectations([Entry("a reason", ("m.C.b",))]))
    assert report.last_line(verdict, results) == "1 passed, 1 failed, 1 skipped"
    assert list(report.expected(verdict)) == ["    1 expected: a reason"]


UNSTEADY = """
import pathlib, unittest

class Case(unittest.TestCase):
    def test_steady(self): {steady}
    def test_once(self):
        if not (seen := pathlib.Path({seen!r})).exists():
            seen.touch()
            self.fail("too slow")
"""


@pytest.mark.parametrize(
    ("steady", "status", "last"),
    [
        ("pass", 0, "2 passed, 0 failed, 0 skipped"),
        ("self.fail()", 1, "1 passed, 1 failed, 0 skipped"),
    ],
)
def test_what_fails_is_run_once_more(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    steady: str,
    status: int,
    last: str,
) -> None:
    package = tmp_path / "unsteady"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    text = UNSTEADY.format(steady=steady, seen=str(tmp_path / "seen"))
    package.joinpath("tests.py").write_text(text)
    monkeypatch.setattr(supervisor, "IMPORT_PATH", (*supervisor.IMPORT_PATH, tmp_path))
    assert main(["--loop", STOCK, "--module", "unsteady.tests"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == last
    assert "passed when it was run again: unsteady.tests.Case.test_once: fail" in lines


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[floors]", "unknown tables: floors"),
        ("[[expected]]\nreason = 'x'", "needs a reason and tests"),
        ("[[expected]]\ntests = ['x']", "needs a reason and tests"),
        ("[[expected]]\nreason = 'x'\ntests = ['x']\nskip = true", "unknown key 'skip'"),
        ("[[expected]]\nreason = 'x'\ntests = 'x'", "tests must be a list"),
    ],
)
def test_a_wrong_expectation_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "loop.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        expectations.load(path, "3.12")


def test_entries_and_floors_are_by_version(tmp_path: Path) -> None:
    path = tmp_path / "loop.toml"
    path.write_text(
        "[floor]\n'3.12' = 5\n"
        "[[expected]]\nreason = 'old'\ntests = ['a']\nversions = ['3.11']\n"
        "[[expected]]\nreason = 'all'\ntests = ['b']\nrun = false\nflaky = true\n"
    )
    assert expectations.load(path, "3.12") == Expectations(
        [Entry("all", ("b",), flaky=True, run=False)], floor=5
    )
    assert [e.reason for e in expectations.load(path, "3.11").entries] == ["old", "all"]


def test_a_baseline_holds_what_always_passed(tmp_path: Path) -> None:
    def run(second: Outcome) -> dict[str, Result]:
        found = [Result("m.C.a", Outcome.PASS), Result("m.C.b", second)]
        return {result.id: result for result in found}

    runs = [run(Outcome.PASS), run(Outcome.FAIL)]
    passed = baseline.always_passed(runs)
    baseline.save(tmp_path / "x.json", "asyncio", passed)
    assert baseline.load(tmp_path / "x.json") == {"m.C.a"}
    assert list(report.sometimes(runs, passed)) == ["passed in some runs only: m.C.b: fail"]


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_files_that_belong_to_it_can_be_read(version: str) -> None:
    assert expectations.load(expectations.DIRECTORY / "zcloop.toml", version).floor > 0
    assert len(baseline.load(baseline.path_of("uvloop", version))) > 1800


def test_the_modules_are_all_that_this_python_has() -> None:
    """The older of the modules are in every Python, and nothing newer is unknown."""
    since = {"test_eager_task_factory": (3, 12), "test_staggered": (3, 13)}
    wanted = [m for m in suite.MODULES if sys.version_info >= since.get(m, (3, 11))]
    assert suite.present_modules()[: len(wanted)] == wanted


@pytest.mark.parametrize("module", suite.HOOKS)
def test_hooks_are_where_the_suite_has_them(module: str) -> None:
    """A class that CPython renames would leave its tests on stock asyncio."""
    classes = {test_id.split(".")[1] for test_id in supervisor.list_tests(STOCK, module)}
    assert classes >= suite.HOOKS[module].keys()
    assert not classes & suite.SIBLINGS
