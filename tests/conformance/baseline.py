"""What another loop passes: `baselines/<package>-<version>.json`, recorded once.

    {"loop": "uvloop 0.23.0", "python": "3.11.7", "passed": {"module.Class": ["test", …], …}}

Only tests that passed in every one of several runs are in it.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from .outcome import Outcome, Result

DIRECTORY = Path(__file__).resolve().parent / "baselines"


def path_of(name: str, version: str) -> Path:
    return DIRECTORY / f"{name}-{version}.json"


def load(path: Path) -> frozenset[str]:
    """The ids of the tests that pass there. Raises FileNotFoundError."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return frozenset(
        f"{prefix}.{test}" for prefix, tests in document["passed"].items() for test in tests
    )


def always_passed(runs: Sequence[Mapping[str, Result]]) -> frozenset[str]:
    """The ids of the tests that passed in every run."""
    return frozenset(
        test_id
        for test_id in runs[0]
        if all(test_id in run and run[test_id].outcome is Outcome.PASS for run in runs)
    )


def save(path: Path, package: str, passed: Iterable[str]) -> None:
    """Write down the ids of the tests that passed with `package`'s loop."""
    grouped: dict[str, list[str]] = {}
    for test_id in sorted(passed):
        prefix, _, test = test_id.rpartition(".")
        grouped.setdefault(prefix, []).append(test)
    head = {"loop": _name_and_version(package), "python": platform.python_version()}
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in grouped.items())
    # One line a class: differences stay readable, the file stays small.
    text = json.dumps(head)[:-1] + ', "passed": {\n' + ",\n".join(lines) + "\n}}\n"
    path.write_text(text, encoding="utf-8")


def _name_and_version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:  # asyncio comes with Python
        return package
