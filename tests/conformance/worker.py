"""The process that runs tests: `python -m conformance.worker LOOP MODULE FD`.

Test ids come on standard input, one a line; none means: list them. What happens goes to the
descriptor FD as JSON, one object a line, so that nothing a test prints can be mistaken for it:
`{"id": …}` for a listed test, `{"start": id}`, a `Result`, and `{"end": true}` at last. The parent
kills the whole session if a test hangs, and knows from the last `start` which one it was.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import resource
import signal
import sys
import time
import traceback
import unittest
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from .outcome import Outcome, Result
from .suite import Suite, resolve, test_ids

DETAIL_CHARS = 2000
# A test that hangs may also grow: without a limit it would take the machine's memory before its
# time-out.
DATA_LIMIT_BYTES = 2 << 30
PR_SET_PDEATHSIG = 1  # prctl(2)


def describe(error: BaseException) -> str:
    """The traceback, without the frames of unittest that lead to the test."""
    where = error.__traceback__
    while where is not None and "__unittest" in where.tb_frame.f_globals:
        where = where.tb_next
    return "".join(traceback.format_exception(type(error), error, where))


class OneTest(unittest.TestResult):
    """The outcome of a single test; of several problems the first one counts."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome = Outcome.PASS
        self.detail = ""

    def broke(self, outcome: Outcome, detail: str) -> None:
        if not self.outcome.broken:
            self.outcome, self.detail = outcome, detail[-DETAIL_CHARS:]

    def addError(self, test: Any, err: Any) -> None:
        self.broke(Outcome.ERROR, describe(err[1]))

    def addFailure(self, test: Any, err: Any) -> None:
        self.broke(Outcome.FAIL, describe(err[1]))

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.broke(Outcome.FAIL, describe(err[1]))

    def addSkip(self, test: Any, reason: str) -> None:
        if not self.outcome.broken:
            self.outcome, self.detail = Outcome.SKIP, reason

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.outcome = Outcome.XFAIL

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.outcome = Outcome.XPASS


class Channel:
    """The way back to the parent."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "w", buffering=1)

    def send(self, **record: Any) -> None:
        self._file.write(json.dumps(record) + "\n")


def run_one(suite: Suite, test_id: str, test: unittest.TestCase) -> Result:
    """Run one test. Nothing it raises gets out, not even KeyboardInterrupt."""
    outcome = OneTest()
    loops, own_loops, start = suite.loops, suite.own_loops, time.perf_counter()
    try:
        test.run(outcome)
    except BaseException as error:
        outcome.broke(Outcome.ERROR, describe(error))
    return Result(
        test_id,
        outcome.outcome,
        outcome.detail,
        suite.loops - loops,
        suite.own_loops - own_loops,
        round(time.perf_counter() - start, 4),
    )


def enter_class(cls: type[unittest.TestCase]) -> OneTest:
    """Call setUpClass; what comes back has the outcome of all its tests if that isn't PASS."""
    outcome = OneTest()
    if getattr(cls, "__unittest_skip__", False):  # each test says so itself
        return outcome
    try:
        cls.setUpClass()
    except unittest.SkipTest as reason:
        outcome.addSkip(cls, str(reason))
    except Exception as error:
        outcome.broke(Outcome.ERROR, describe(error))
    return outcome


def run(suite: Suite, module: Any, ids: Iterable[str], channel: Channel) -> None:
    """Run `ids`, which come grouped by class, with the module's and the classes' fixtures."""
    if hasattr(module, "setUpModule"):
        module.setUpModule()
    for prefix, group in groupby(ids, key=lambda test_id: test_id.rpartition(".")[0]):
        cls = getattr(module, prefix.rpartition(".")[2])
        entered = enter_class(cls)
        for test_id in group:
            channel.send(start=test_id)
            if entered.outcome is Outcome.PASS:
                result = run_one(suite, test_id, cls(test_id.rpartition(".")[2]))
            else:
                result = Result(test_id, entered.outcome, entered.detail)
            channel.send(**result.to_json())
        if entered.outcome is Outcome.PASS and not getattr(cls, "__unittest_skip__", False):
            cls.tearDownClass()
            cls.doClassCleanups()
    channel.send(end=True)


def main(loop: str, module_name: str, fd: str) -> None:
    faulthandler.enable()
    # A shell starts its background jobs with SIGINT ignored; the suite counts on it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A hanging test must not outlive a parent that was interrupted.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_LIMIT_BYTES, DATA_LIMIT_BYTES))
    channel = Channel(int(fd))
    wanted = sys.stdin.read().split()
    suite = Suite(resolve(loop))
    module = suite.load(module_name)
    if wanted:
        run(suite, module, wanted, channel)
    else:
        for test_id in test_ids(module_name, module):
            channel.send(id=test_id)
        channel.send(end=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # threads and loops that a test left behind may not keep the process
