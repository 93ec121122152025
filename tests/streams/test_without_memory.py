"""A read that fails for want of memory has taken nothing: the next one begins where it began."""
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, resource, sys, zcloop
how, cut = sys.argv[1], int(sys.argv[2])
MIB = 1 << 20
data = b"HEAD" + bytes(64 * MIB)

async def main():
    reader = zcloop.StreamReader(limit=1 << 30)
    reader.feed_data(data[:cut])
    if cut < len(data):
        reader.feed_data(data[cut:])
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + 4 * MIB, resource.RLIM_INFINITY))
    try:
        await getattr(reader, how)(45 * MIB)
    except MemoryError:
        pass
    else:
        sys.exit("there was memory")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    assert await reader.readexactly(4) == b"HEAD"
    assert len(await reader.readexactly(64 * MIB)) == 64 * MIB

asyncio.run(main())
"""


@pytest.mark.parametrize("cut", [40 << 20, 100 << 20], ids=["two pieces", "one piece"])
@pytest.mark.parametrize("how", ["read", "readexactly"])
def test_nothing_is_taken(how, cut):
    done = subprocess.run([sys.executable, "-c", PROGRAM, how, str(cut)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
