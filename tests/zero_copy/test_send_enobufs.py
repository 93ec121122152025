"""Where the kernel has no memory for zero-copy sends (ENOBUFS), everything arrives by a copy.

What a user may lock (RLIMIT_MEMLOCK) bounds what MSG_ZEROCOPY may pin. An ordinary user with 64 KiB
of it, many systems' default, gets ENOBUFS for every send of 64 KiB, and for small ones while others
are under way, also when nothing is outstanding whose completion one could wait for. The sender is
another process and, where the tests run as root, another user, as root isn't limited.

The suite sends 128 MiB; ENOBUFS_MIB=1024 sends a GiB.
"""
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

SENDER = Path(__file__).with_name("limited_sender.py")
MIB = int(os.environ.get("ENOBUFS_MIB", "128"))


def receive(sock):
    """Bytes received and their hash, to the end of the stream."""
    digest, received, buffer = hashlib.sha1(), 0, bytearray(1 << 20)
    while size := sock.recv_into(buffer):
        digest.update(memoryview(buffer)[:size])
        received += size
    return received, digest.hexdigest()


def test_everything_arrives_without_memory_to_lock():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, str(SENDER), str(listener.getsockname()[1]), str(MIB)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as sender:
            sock, _ = listener.accept()
            with sock:
                received, digest = receive(sock)
                sock.sendall(b"all\n")
            output, errors = sender.communicate()
    assert sender.returncode == 0, errors
    result = json.loads(output)
    print(result)
    assert result["user"] != 0
    assert received == MIB << 20
    assert digest == result["hash"]
    counted = result["connection"]
    assert counted["zerocopy_fallback_enobufs"] > 0
    assert counted["zerocopy_sends"] > 0            # what fits goes without a copy all the same
    assert counted["bytes_sent"] == received
    assert result["loop"]["zerocopy_outstanding"] == result["loop"]["zerocopy_pinned"] == 0
