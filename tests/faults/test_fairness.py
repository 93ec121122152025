"""A peer that is as fast as we are doesn't get the loop to itself."""
import asyncio
import socket
import threading

import pytest

SIZE = 128 * 2**20
BLOCK = b"f" * 2**20


@pytest.mark.loops("zcloop", "zcloop-debug")
async def test_callbacks_run_while_a_large_read_is_filled():
    """Over a unix socket there is always more to receive, so a fill could go on for ever."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)

    def feed():
        for _ in range(SIZE // len(BLOCK)):
            theirs.sendall(BLOCK)

    feeder = threading.Thread(target=feed)
    turns = 0

    def turn():
        nonlocal turns, handle
        turns += 1
        handle = loop.call_soon(turn)

    handle = loop.call_soon(turn)
    feeder.start()
    try:
        data = await reader.readexactly(SIZE)
    finally:
        handle.cancel()
        writer.close()
        await writer.wait_closed()
        theirs.close()
        feeder.join()
    assert len(data) == SIZE
    # At most 16 steps of 1 MiB between two turns; some turns find nothing to receive.
    assert turns >= SIZE // 2**20 // 16
