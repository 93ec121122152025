"""A zero-copy sender that may lock 64 KiB of memory: run by test_send_enobufs.py.

    python limited_sender.py PORT MIB

Where it is root it becomes a user with no name, since root's locked memory isn't limited, and one
of its own, since the limit is one for all processes of a user. Everything is imported before,
because that user may not be able to read it. Prints user, hash and counters as JSON.
"""
import asyncio
import dataclasses
import hashlib
import json
import os
import random
import resource
import sys

import zcloop

LOCKED = 64 << 10
MIB = 1 << 20
FIRST_USER = 1 << 20     # above those that systems give out


def drop_privileges():
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (LOCKED, LOCKED))
    if os.geteuid() == 0:
        user = FIRST_USER + os.getpid()
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


async def send(port, total):
    """Sizes around the limit: a send that fits, one that fits by itself, one that never does."""
    loop = asyncio.get_running_loop()
    rng = random.Random(64)
    block = rng.randbytes(4 * MIB)
    digest = hashlib.sha1()
    reader, writer = await zcloop.open_connection("127.0.0.1", port)
    lent, left = set(), total
    while left:
        size = min(left, rng.choice((16 << 10, 48 << 10, 256 << 10, MIB)))
        start = rng.randrange(len(block) - size)
        data = block[start:start + size]
        digest.update(data)
        left -= size
        if rng.random() < 0.5:
            writer.write(data)
        else:
            buffer = bytearray(data)
            future = writer.write_zerocopy(buffer)
            lent.add(future)
            future.add_done_callback(lambda f, b=buffer: (lent.discard(f), b.clear()))
        await writer.drain()
    writer.write_eof()
    assert await reader.read() == b"all\n"
    while lent:
        await asyncio.wait(lent)
    counters = writer.get_extra_info("zcloop")
    writer.close()
    await writer.wait_closed()
    return {
        "user": os.getuid(), "hash": digest.hexdigest(),
        "connection": dataclasses.asdict(counters),
        "loop": dataclasses.asdict(loop.zcloop_stats()),
    }


def main():
    port, mib = map(int, sys.argv[1:])
    config = zcloop.Config(send="zerocopy", zerocopy_threshold=16 << 10)
    drop_privileges()
    print(json.dumps(zcloop.run(send(port, mib * MIB), config=config)), flush=True)


if __name__ == "__main__":
    main()
