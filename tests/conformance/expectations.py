"""What a loop isn't expected to pass, and why: `expected/<package>.toml`.

    [floor]                       # tests that must pass in a full run, by Python version
    "3.11" = 1880

    [[expected]]
    reason = "private child watchers of another implementation"
    tests = ["test_subprocess.SubprocessFastWatcherTests.test_popen*"]
    versions = ["3.11", "3.12"]   # default: all
    flaky = true                  # may pass as well as fail; default: must fail
    run = false                   # would hang: leave it out; default: run it

Every entry has to be true: one whose tests pass, or that matches no test, is stale and fails the
run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parent / "expected"


@dataclass(frozen=True, slots=True)
class Entry:
    """Tests (ids or patterns) that share one reason."""

    reason: str
    tests: tuple[str, ...]
    flaky: bool = False
    run: bool = True

    def matches(self, test_id: str) -> bool:
        return any(fnmatchcase(test_id, pattern) for pattern in self.tests)

    def idle_patterns(self, ids: Iterable[str]) -> list[str]:
        """The patterns that match none of `ids`."""
        known = list(ids)
        return [p for p in self.tests if not any(fnmatchcase(i, p) for i in known)]


@dataclass(frozen=True, slots=True)
class Expectations:
    """One loop's entries for one Python version; `floor` is 0 where none is set."""

    entries: Sequence[Entry] = ()
    floor: int = 0

    def entry_for(self, test_id: str) -> Entry | None:
        """The first entry that covers the test."""
        return next((entry for entry in self.entries if entry.matches(test_id)), None)


def load(path: Path, version: str) -> Expectations:
    """Read `path` for the Python `version` ("3.12").

    Raises FileNotFoundError, tomllib.TOMLDecodeError, and ValueError that says what is wrong.
    """
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = document.keys() - {"floor", "expected"}
    if unknown:
        raise ValueError(f"{path.name}: unknown tables: {', '.join(sorted(unknown))}")
    entries = (_parse(table, path.name) for table in document.get("expected", ()))
    return Expectations(
        [entry for entry, versions in entries if not versions or version in versions],
        document.get("floor", {}).get(version, 0),
    )


def _parse(table: dict[str, Any], where: str) -> tuple[Entry, Sequence[str]]:
    types = {"reason": str, "tests": list, "versions": list, "flaky": bool, "run": bool}
    for key, value in table.items():
        if key not in types:
            raise ValueError(f"{where}: unknown key {key!r}; known are {', '.join(types)}")
        if not isinstance(value, types[key]):
            raise ValueError(f"{where}: {key} must be a {types[key].__name__}, not {value!r}")
    if not table.get("reason") or not table.get("tests"):
        raise ValueError(f"{where}: an entry needs a reason and tests: {table}")
    entry = Entry(
        table["reason"],
        tuple(table["tests"]),
        flaky=table.get("flaky", False),
        run=table.get("run", True),
    )
    return entry, table.get("versions", ())
