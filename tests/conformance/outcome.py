"""What became of one test, in a shape that travels between processes as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a test ended; the values are the ones printed and stored."""

    PASS = "pass"
    SKIP = "skip"
    XFAIL = "xfail"  # failed, and CPython itself marks it @expectedFailure
    XPASS = "xpass"  # passed although marked @expectedFailure
    FAIL = "fail"
    ERROR = "error"
    TIMEOUT = "timeout"  # no progress within the time-out: the worker was killed
    CRASH = "crash"  # the worker process died in it
    NOT_RUN = "not-run"  # left out on purpose, see expectations.Entry.run

    @property
    def broken(self) -> bool:
        """True if the test says that something is wrong."""
        return self in _BROKEN


_BROKEN = frozenset({Outcome.XPASS, Outcome.FAIL, Outcome.ERROR, Outcome.TIMEOUT, Outcome.CRASH})


@dataclass(frozen=True, slots=True)
class Result:
    """One test that ended.

    `loops` counts the loops it got from the factory under test, `own_loops` those of asyncio's
    own classes that it made by itself. `detail` is the end of the traceback, or the reason of a
    skip.
    """

    id: str
    outcome: Outcome
    detail: str = ""
    loops: int = 0
    own_loops: int = 0
    seconds: float = 0.0

    @property
    def module(self) -> str:
        return self.id.rsplit(".", 2)[0]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Result:
        return cls(**{**record, "outcome": Outcome(record["outcome"])})
