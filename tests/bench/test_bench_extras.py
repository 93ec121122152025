"""A benchmark command without what it needs: one sentence with the remedy, and no traceback."""
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def without(library, command):
    """Runs `python -m command` where `library` can't be imported; status, output, errors."""
    code = (f"import runpy, sys; sys.modules[{library!r}] = None; "
            f"sys.argv[1:] = {command[1:]!r}; runpy.run_module({command[0]!r}, "
            "run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", [
    "benchmarks", "benchmarks.receive", "benchmarks.aiohttp", "benchmarks.zerocopy_send"])
def test_without_rich(command):
    assert without("rich", [command, "--list"]) == (1, "", (
        "the benchmarks need rich, which isn't installed: pip install -e '.[bench]'\n"))


def test_without_aiohttp():
    pytest.importorskip("rich", reason="the tables need rich, of the extra 'bench'")
    assert without("aiohttp", ["benchmarks.aiohttp"]) == (2, "", (
        "these benchmarks need aiohttp, which isn't installed: pip install -e '.[bench]'\n"))
