"""Zero-copy sends under stress: no byte arrives wrong, no memory is let go of too early, and none
is held for ever.

200 connections of one process (send_stress.py) send pieces of 1 B to 8 MiB as `bytes`, views,
`writelines`, mutable buffers and `write_zerocopy`, and end by close, abort, a peer's reset, a peer
that stalls (and reads on, or never does), cancelled tasks, and the loop's own end. A receiver in
another process (checking_peer.py) compares every byte with a keyed pattern. Whatever zcloop lets
go of is overwritten at once: a mutable buffer by the test, `bytes` by the allocator, as they are
freed. Two controls show that the receiver notices memory which changes too early, and that freed
memory is overwritten.

The suite takes one seed for each mode, some seconds. More, for hours if need be:

    STRESS_SEEDS=1-50 STRESS_MIB=1024 python -m pytest tests/zero_copy/test_send_stress.py

A failure prints its seed; `python tests/zero_copy/send_stress.py --seed N` runs that one alone.

Under AddressSanitizer: build the extension with it in an environment of its own, and preload its
library. Python's own leaks are not the matter; free() overwrites through max_free_fill_size.

    python -m venv build/asan && build/asan/bin/pip install -C cmake.define.ZCLOOP_SANITIZE=ON .
    export LD_PRELOAD=$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so)
    export ASAN_OPTIONS=detect_leaks=0:max_free_fill_size=16777216:free_fill_byte=238
    PYTHONMALLOC=malloc build/asan/bin/python tests/zero_copy/send_stress.py --seed 1
"""
import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from checking_peer import HEADER, STALL, stream

HERE = Path(__file__).parent
# glibc's malloc then overwrites a block when it is freed, and keeps large ones in the heap, where
# this shows. In its own blocks nothing else is to be large, Python's small objects included.
OVERWRITING = {
    "PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "221", "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
}
MIB = os.environ.get("STRESS_MIB", "48")


def seeds():
    first, _, last = os.environ.get("STRESS_SEEDS", "1").partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("mode", ["zerocopy", "pages", "auto", "copy"])
@pytest.mark.parametrize("seed", seeds())
def test_every_byte_arrives_and_nothing_is_held(seed, mode):
    command = [sys.executable, str(HERE / "send_stress.py"), "--seed", str(seed), "--mib", MIB,
               "--send", mode]
    done = subprocess.run(command, env={**os.environ, **OVERWRITING}, capture_output=True,
                          text=True)
    print(f"seed {seed}, {mode}: {done.stdout.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert result["problems"] == []
    assert result["bytes"] > 16 << 20


MSG_ZEROCOPY, SO_ZEROCOPY = 0x4000000, 60


def test_control_the_receiver_notices_memory_that_changes_too_early():
    """The same peer, a raw socket, and a sender that doesn't wait."""
    with subprocess.Popen([sys.executable, str(HERE / "checking_peer.py")], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
        ports = json.loads(peer.stdout.readline())
        with socket.create_connection(("127.0.0.1", ports[1])) as sock:
            sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
            sock.sendall(HEADER.pack(5, STALL, 10_000))
            buffer = bytearray(stream(5, 0, 2 << 20))
            sent = sock.send(buffer, MSG_ZEROCOPY | socket.MSG_DONTWAIT)
            assert sent > 1 << 20       # more than the small receive buffer takes
            buffer[:] = b"\xee" * len(buffer)
            peer.stdin.write("resume 5\n")
            peer.stdin.flush()
        print("end", file=peer.stdin, flush=True)
        received, wrong, how = json.loads(peer.stdout.readline())["5"]
    assert received == sent
    assert how == "eof"
    assert 10_000 <= wrong < sent


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc",
                    reason="this malloc isn't glibc's: nothing overwrites what is freed")
def test_control_freed_bytes_are_overwritten():
    program = ("import ctypes; data = b'x' * 3000000; at = id(data) + bytes.__basicsize__ - 1; "
               "before = ctypes.string_at(at + 1000000, 4); del data; "
               "print(before, ctypes.string_at(at + 1000000, 4))")
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **OVERWRITING},
                          capture_output=True, text=True)
    assert done.stdout == "b'xxxx' b'\\xdd\\xdd\\xdd\\xdd'\n", done.stderr
