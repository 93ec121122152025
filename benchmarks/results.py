"""Raw data on disk: written after every case, read back to show or judge an earlier run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cases import Case
from .runner import Result

RESULTS = Path(__file__).parent / "results"


def save(path: Path, stamp: dict[str, Any], results: list[Result], missing: dict[str, str]) -> None:
    """`missing`: the sides that had no loop to offer, with the reason."""
    document = {
        "environment": stamp,
        "missing_sides": missing,
        "cases": [{"case": asdict(r.case), "samples": r.samples} for r in results],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _case(record: dict[str, Any]) -> Case:
    """JSON has no tuples; a case is made of them."""
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
    }
    plain["env"] = tuple((str(key), str(value)) for key, value in record["env"])
    return Case(**plain)


def load(path: Path) -> tuple[dict[str, Any], list[Result], dict[str, str]]:
    """What `save` wrote: environment, results, missing sides."""
    document = json.loads(path.read_text())
    results = [Result(_case(entry["case"]), entry["samples"]) for entry in document["cases"]]
    return document["environment"], results, document["missing_sides"]
