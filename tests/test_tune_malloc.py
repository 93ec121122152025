"""tune_malloc: freed blocks are kept, in a process of its own since it can't be undone."""

import subprocess
import sys

import pytest

# Eight blocks of 8 MiB, allocated and freed twice: kept memory is faulted in once.
PROGRAM = """
import resource, sys, zcloop
zcloop.new_event_loop(zcloop.Config(tune_malloc=sys.argv[1] == "on")).close()
def work():
    blocks = [b"x" * (8 << 20) for _ in range(8)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(switch):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, switch],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_freed_blocks_are_kept():
    assert faults("on") * 10 < faults("off")
