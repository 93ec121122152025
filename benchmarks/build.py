"""Compiles the programs in C on first use, and when a source has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
REFERENCE = NATIVE / "reference"
BUILD = Path(__file__).parent / ".build"
PYTHON_HASH = "pyhash.c"
FLAGS = ["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]
C_SERVERS = {"cecho": ("cecho.c",), "czerocopy": ("czerocopy.c", "pattern.c")}
"""The sources of each; the file of the same name is no part of the load generator."""


class BuildError(Exception):
    """No compiler, or it refused; the message says what to do."""


def compiler() -> str:
    found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if not found:
        raise BuildError("the benchmarks need a C compiler: install gcc, or set CC")
    return found


def _compile(name: str, sources: list[Path], *flags: str) -> Path:
    """Built beside its final name and renamed, so that two harnesses may build at once."""
    output = BUILD / name
    inputs = [*sources, *sources[0].parent.glob("*.h"), Path(__file__)]
    if output.exists() and output.stat().st_mtime > max(p.stat().st_mtime for p in inputs):
        return output
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        temporary = Path(scratch) / name
        command = [compiler(), *FLAGS, *flags, *map(str, sources), "-o", str(temporary)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildError(f"{' '.join(command)}\n{done.stderr}")
        temporary.rename(output)
    return output


def loadgen() -> Path:
    sources = sorted(p for p in NATIVE.glob("*.c") if p.stem not in C_SERVERS)
    return _compile("loadgen", sources)


def c_server(name: str) -> Path:
    return _compile(name, [NATIVE / source for source in C_SERVERS[name]])


def reference() -> Path:
    """The program that receives with and without a copy."""
    sources = sorted(p for p in REFERENCE.glob("*.c") if p.name != PYTHON_HASH)
    return _compile("zcref", sources)


def reference_hash() -> Path:
    """Its hash and its stream, for receivers in Python: the extension module zcref_hash."""
    sources = [REFERENCE / "hash.c", REFERENCE / PYTHON_HASH]
    include = sysconfig.get_path("include")
    return _compile("zcref_hash.abi3.so", sources, "-shared", "-fPIC", f"-I{include}")
