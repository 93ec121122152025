"""What zcloop finds on this machine, as text for a person or a bug report."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

from .capabilities import capabilities
from .config import Config
from .mapping import calibration
from .runner import new_event_loop

__all__ = ["report"]


def report(out: TextIO) -> int:
    """Write all sections; 1 if one of them found something wrong, else 0."""
    status = 0
    for title, lines in (
        ("Versions", _versions),
        ("Configuration", _configuration),
        ("What this kernel can do", _kernel),
        ("What mapping received pages costs here", _calibration),
    ):
        found: list[str] = []
        try:
            found.extend(lines())
        except (OSError, ValueError) as exc:
            found.append(f"wrong: {exc}")
            status = 1
        print(title, *(f"  {line}" for line in found), "", sep="\n", file=out)
    return status


def _versions() -> Iterator[str]:
    system = os.uname()
    yield f"zcloop  {importlib.metadata.version('zcloop')}"
    yield f"Python  {platform.python_version()} ({platform.python_implementation()})"
    yield f"        {sys.executable}"
    yield f"kernel  {system.sysname} {system.release}, {system.machine}"
    for package in ("uvloop", "cffi"):
        yield f"{package:<7} {importlib.metadata.version(package)}"


def _configuration() -> Iterator[str]:
    """Every setting and where it comes from; then what a loop that is given them says."""
    config = Config.from_env()
    for field in dataclasses.fields(config):
        variable = f"ZCLOOP_{field.name.upper()}"
        origin = f"from {variable}" if os.environ.get(variable) else "default"
        yield f"{field.name:<18} {getattr(config, field.name)!s:<8} ({origin})"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        new_event_loop(config).close()
    for warning in said:
        yield f"warning: {warning.message}"


def _kernel() -> Iterator[str]:
    yield from str(capabilities()).splitlines()


def _calibration() -> Iterator[str]:
    measured = str(calibration())
    yield from measured.split("; ")
