"""abort() with large bytes on their way looks to the peer as on asyncio, whatever carries them.

A plain socket's close() leaves to the kernel what it has taken, which is then delivered with a
FIN, unless something is unread or SO_LINGER says so.  Only who has asked for zero copy, by a
setting or for a buffer of his own (write_zerocopy), has it back at once, at the price of a reset.
"""
import asyncio
import contextlib
import socket
import struct

import pytest
from support import RecordingProtocol, assert_same, listener, pattern, poll

import zcloop
from zcloop import zerocopy

SIZE = 1 << 20
DATA = pattern(SIZE)
CONFIG = {"zerocopy_threshold": 4096, "zerocopy_linger": 3600}
LOOPS = {
    "asyncio": asyncio.new_event_loop,
    "auto": lambda: zcloop.new_event_loop(zcloop.Config(send="auto", **CONFIG)),
    "zerocopy": lambda: zcloop.new_event_loop(zcloop.Config(send="zerocopy", **CONFIG)),
    "pages": lambda: zcloop.new_event_loop(zcloop.Config(send="pages", **CONFIG)),
}
unasked = pytest.mark.parametrize("loop", ["asyncio", "auto"])
forced = pytest.mark.parametrize("loop", ["zerocopy", "pages"])
loops = pytest.mark.parametrize("loop", LOOPS)
speeds = pytest.mark.parametrize("speed", ["slow", "fast"])     # reads after the end, or before


@pytest.fixture(autouse=True)
def nothing_is_known_of_the_route(monkeypatch):
    monkeypatch.setattr(zerocopy, "_routes", {})


def run(main, loop):
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(main)


def read_to_end(peer):
    """(everything, the error at its end or None); blocks."""
    got = bytearray()
    try:
        while chunk := peer.recv(1 << 20):
            got += chunk
    except ConnectionResetError as exc:
        return got, exc
    return got, None


@contextlib.asynccontextmanager
async def connected(sndbuf):
    """(transport, protocol, blocking peer that takes little by itself)."""
    with listener() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)
        own.connect(listening.getsockname())
        peer, _ = listening.accept()
    own.setblocking(False)
    with peer:
        transport, protocol = await asyncio.get_running_loop().create_connection(
            RecordingProtocol, sock=own)
        yield transport, protocol, peer


def flying(transport):
    """How many sends the kernel hasn't let go of; None on asyncio."""
    stats = transport.get_extra_info("zcloop")
    return stats and stats.zerocopy_sends - stats.zerocopy_completed


async def end(transport, protocol, peer, speed, how="abort"):
    """What the peer gets when the connection is ended now."""
    reading = None
    if speed == "fast":
        reading = asyncio.get_running_loop().run_in_executor(None, read_to_end, peer)
    getattr(transport, how)()
    await protocol.called("connection_lost")
    assert protocol.exc is None
    if reading is None:
        reading = asyncio.get_running_loop().run_in_executor(None, read_to_end, peer)
    result = await reading
    if flying(transport) is not None:
        await poll(lambda: not asyncio.get_running_loop().zcloop_stats().zerocopy_outstanding)
        await poll(lambda: not asyncio.get_running_loop().zcloop_stats().zerocopy_lingering)
    return result


@unasked
@speeds
@pytest.mark.parametrize("sndbuf", [2 * SIZE, 100_000])     # the kernel takes all, or a part
def test_what_the_kernel_has_taken_is_delivered(loop, speed, sndbuf):
    async def main():
        async with connected(sndbuf) as (transport, protocol, peer):
            transport.write(DATA)
            taken = SIZE - transport.get_write_buffer_size()
            assert (taken == SIZE) == (sndbuf > SIZE)
            assert flying(transport) != 0
            got, error = await end(transport, protocol, peer, speed)
            assert error is None
            assert_same(got, DATA[:taken])
    run(main(), loop)


@loops
@speeds
@pytest.mark.parametrize("how", ["abort", "close"])
def test_something_unread_resets(loop, speed, how):
    async def main():
        async with connected(2 * SIZE) as (transport, protocol, peer):
            transport.pause_reading()
            transport.write(DATA)
            peer.send(b"unread")
            got, error = await end(transport, protocol, peer, speed, how)
            assert error is not None
            assert_same(got, DATA[:len(got)])
    run(main(), loop)


@loops
@pytest.mark.parametrize("how", ["abort", "close"])
def test_so_linger_of_no_seconds_resets(loop, how):
    """Set by a program that wants just that."""
    async def main():
        async with connected(2 * SIZE) as (transport, protocol, peer):
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.write(DATA)
            got, error = await end(transport, protocol, peer, "slow", how)
            assert error is not None
            assert len(got) < SIZE
            assert_same(got, DATA[:len(got)])
    run(main(), loop)


@forced
def test_where_it_was_asked_for_everything_comes_back_at_once(loop):
    async def main():
        async with connected(2 * SIZE) as (transport, protocol, peer):
            transport.write(DATA)
            assert flying(transport) > 0
            transport.abort()
            await protocol.called("connection_lost")
            await poll(lambda: not asyncio.get_running_loop().zcloop_stats().zerocopy_lingering)
            assert flying(transport) == 0
            got, error = read_to_end(peer)
            assert error is not None
            assert len(got) < SIZE
            assert_same(got, DATA[:len(got)])
    run(main(), loop)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("loop", ["auto", "zerocopy", "pages"])
def test_a_buffer_that_is_waited_for_comes_back_at_once(loop, cancelled):
    """Also of somebody who has stopped waiting: the memory is still his."""
    async def main():
        async with connected(4 * SIZE) as (transport, protocol, peer):
            if loop != "auto":      # there it would be the one that tries
                transport.write(DATA)
            buffer = bytearray(DATA)
            future = transport.write_zerocopy(buffer)
            assert transport.get_write_buffer_size() == 0
            assert flying(transport) > 0
            if cancelled:
                future.cancel()
            transport.abort()
            await protocol.called("connection_lost")
            await poll(lambda: not asyncio.get_running_loop().zcloop_stats().zerocopy_lingering)
            assert future.done()
            buffer.append(0)            # nobody has it
            got, error = read_to_end(peer)
            assert error is not None
            assert_same(got, DATA[:len(got)])
    run(main(), loop)


def test_a_peer_that_takes_nothing_is_given_up():
    async def main():
        async with connected(2 * SIZE) as (transport, protocol, peer):
            transport.write(DATA)
            transport.abort()
            await protocol.called("connection_lost")
            loop = asyncio.get_running_loop()
            assert loop.zcloop_stats().zerocopy_lingering == 1
            await poll(lambda: not loop.zcloop_stats().zerocopy_lingering)
            got, error = read_to_end(peer)
            assert error is not None
            assert_same(got, DATA[:len(got)])
    config = zcloop.Config(send="auto", zerocopy_threshold=4096, zerocopy_linger=0.3)
    with asyncio.Runner(loop_factory=lambda: zcloop.new_event_loop(config)) as runner:
        runner.run(main())
