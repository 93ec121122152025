"""A connection with sends in flight whose peer doesn't read, and what is looked at.

Most of a payload waits in the kernel, which will read the program's memory when the peer does.
Memory is overwritten as soon as it is unlocked, which shows as wrong bytes at the peer if that
was too early; and unlocked it must be in the end, or it is held for ever.
"""
import asyncio
import contextlib
import socket

from support import RecordingProtocol, listener, pattern, poll

import zcloop

SIZE = 1_500_000
DATA = pattern(SIZE)
SHORT = zcloop.Config(send="zerocopy", zerocopy_threshold=4096, zerocopy_linger=0.3)
LONG = zcloop.Config(send="zerocopy", zerocopy_threshold=4096, zerocopy_linger=3600)


def run(main, config=LONG):
    """Run it on a loop of its own; nothing may have come to the loop's exception handler."""
    errors = []
    with asyncio.Runner(loop_factory=lambda: zcloop.new_event_loop(config)) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: errors.append(context))
        result = runner.run(main)
    assert errors == []
    return result


def connected():
    """(own socket, peer): the kernel takes SIZE bytes of ours, the peer's takes few of them."""
    with listener() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * SIZE)
        own.connect(listening.getsockname())
        peer, _ = listening.accept()
    own.setblocking(False)
    return own, peer


def read_to_end(peer):
    """(everything, the error at its end or None), reading as fast as it can; blocks."""
    got = bytearray()
    peer.setblocking(True)
    try:
        while chunk := peer.recv(1 << 20):
            got += chunk
    except ConnectionResetError as exc:
        return got, exc
    return got, None


async def read_all(peer):
    return await asyncio.get_running_loop().run_in_executor(None, read_to_end, peer)


def unlocked(buffer):
    """Whether nobody has the buffer exported; if so, it is overwritten, and then freed."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer[:] = b"\xff" * len(buffer)
    buffer.clear()
    return True


@contextlib.asynccontextmanager
async def linked():
    """(transport, protocol, peer): `connected`, and the running loop has our end."""
    own, peer = connected()
    with peer:
        transport, protocol = await asyncio.get_running_loop().create_connection(
            RecordingProtocol, sock=own)
        yield transport, protocol, peer


@contextlib.asynccontextmanager
async def in_flight():
    """(transport, protocol, peer, buffer, future) with SIZE bytes in the kernel, few delivered."""
    async with linked() as (transport, protocol, peer):
        buffer = bytearray(DATA)
        future = transport.write_zerocopy(buffer)
        assert transport.get_write_buffer_size() == 0
        assert in_flight_now() > 0
        assert not unlocked(buffer)
        yield transport, protocol, peer, buffer, future


def in_flight_now():
    return asyncio.get_running_loop().zcloop_stats().zerocopy_outstanding


async def nothing_held(buffer):
    await poll(lambda: unlocked(buffer))
    await poll(lambda: not asyncio.get_running_loop().zcloop_stats().zerocopy_lingering)
    stats = asyncio.get_running_loop().zcloop_stats()
    assert (stats.zerocopy_outstanding, stats.zerocopy_pinned) == (0, 0)
