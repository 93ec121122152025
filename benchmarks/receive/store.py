"""Raw data on disk, written after every cell, and read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cells import Cell, Side
from .run import Result


def save(path: Path, stamp: dict[str, Any], results: Sequence[Result]) -> None:
    document = {"environment": stamp, "cells": [asdict(result) for result in results]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _cell(record: dict[str, Any]) -> Cell:
    """JSON has no tuples."""
    sides = tuple(
        Side(**{**side, "env": tuple((key, value) for key, value in side["env"])})
        for side in record["sides"]
    )
    return Cell(**{**record, "sides": sides})


def load(path: Path) -> tuple[dict[str, Any], list[Result]]:
    document = json.loads(path.read_text())
    results = [
        Result(_cell(entry["cell"]), entry["samples"], entry["missing"])
        for entry in document["cells"]
    ]
    return document["environment"], results
