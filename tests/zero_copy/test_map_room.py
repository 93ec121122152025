"""Near vm.max_map_count a loop that maps loses nothing: what can't be moved or mapped is copied.

Each receiver is a process of its own, in which all mappings but a few are used up.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from crowded import ENVIRONMENT, MAX_MAP_COUNT, TOO_MANY
from mapped_streams import needs_mapping

pytestmark = [needs_mapping, pytest.mark.skipif(
    MAX_MAP_COUNT > TOO_MANY, reason="using up so many mappings takes too much memory")]
HERE = Path(__file__).parent


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], text=True, capture_output=True,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{HERE}:{HERE.parent}"})
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr, done.stdout)
    return done.stdout


@pytest.mark.parametrize("door", ["buffer", "exact", "readview", "pages"])
def test_nothing_is_lost_without_room(door):
    counted = json.loads(run(str(HERE / "crowded_receiver.py"), door))
    assert counted["mapped"] > 0
    if door in ("buffer", "exact"):
        assert counted["not_moved"] > 0
        assert counted["copied_out"] > 0


def test_what_can_not_be_had_names_the_limit():
    assert run("-c", """
import zcloop
from crowded import Crowd
with Crowd():
    try:
        zcloop.PageBuffer(8192)
    except MemoryError as exc:
        print(exc)
zcloop.PageBuffer(8192)
""").count("vm.max_map_count") == 1
