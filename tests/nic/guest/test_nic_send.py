"""Sending without a copy where it is true: nothing is copied, and nothing let go of early or never.

Every test overwrites memory as soon as zcloop lets go of it, and the far end compares each byte.
Completions take 10 to 200 ms here, so there is much in flight when a connection ends.
"""
import asyncio
import ctypes
import random
import socket
import sys

import peers
import pytest
from kernel_calls import is_stalled
from support import poll

import zcloop

pytestmark = pytest.mark.loops("zcloop")

MIB = 1 << 20
_BYTES_HEADER = bytes.__basicsize__ - 1     # of an object; its bytes come next
FAMILIES = pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6],
                                   ids=["ipv4", "ipv6"])


class Sender(asyncio.Protocol):
    """Writes messages, and overwrites each one's memory as soon as zcloop has let go of it."""

    def __init__(self, first=0):
        self._number = first
        self._dropped = []      # immutable: ours is the only reference left when zcloop drops it
        self._locked = []       # mutable: can't be resized while zcloop holds it
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, exc):
        self.lost.set_result(exc)
        self._may_write.set()

    def pause_writing(self):
        self._may_write.clear()

    def resume_writing(self):
        self._may_write.set()

    async def drain(self):
        await self._may_write.wait()

    def _next(self, size):
        self._number += 1
        return peers.message(self._number - 1, size)

    def write(self, size):
        """The next message, as bytes."""
        message = self._next(size)
        self.transport.write(message)
        if size > 1:    # Python has one object for each single byte
            self._dropped.append(message)

    def write_zerocopy(self, size):
        """The next message, as a bytearray; the future."""
        buffer = bytearray(self._next(size))
        future = self.transport.write_zerocopy(buffer)
        self._locked.append(buffer)
        return future

    def overwrite(self):
        """Overwrite what is free to be; returns how many messages aren't."""
        dropped, self._dropped = self._dropped, []
        while dropped:
            message = dropped.pop()
            if sys.getrefcount(message) > 2:    # our name and the argument
                self._dropped.append(message)
            else:
                ctypes.memset(id(message) + _BYTES_HEADER, 0xEE, len(message))
        locked, self._locked = self._locked, []
        for buffer in locked:
            if is_locked(buffer):
                self._locked.append(buffer)
            else:
                buffer[:] = b"\xee" * len(buffer)
        return len(self._dropped) + len(self._locked)

    async def all_let_go(self):
        """Wait until zcloop holds no message, and the loop knows of nothing in flight."""
        await poll(lambda: not self.overwrite())
        loop = asyncio.get_running_loop()
        await poll(lambda: loop.zcloop_stats().zerocopy_lingering == 0)
        stats = loop.zcloop_stats()
        assert (stats.zerocopy_outstanding, stats.zerocopy_pinned) == (0, 0)


def is_locked(buffer):
    try:
        buffer.append(0)
    except BufferError:
        return True
    buffer.pop()
    return False


async def connect(peer, sizes, family=socket.AF_INET, stall_at=None):
    """A Sender connected to a peer that checks messages of these sizes."""
    peer.start(peers.receive, sizes, family, stall_at)
    address = await peer.told()
    _, sender = await asyncio.get_running_loop().create_connection(Sender, *address)
    return sender


async def connect_and_fill(peer, sizes):
    """A Sender with all messages written, to a peer that has read only the first, and its futures.

    That one was zcloop's trial of the route: the others go without a copy. The peer's kernel has
    taken what it has room for, and no more will be sent.
    """
    sender = await connect(peer, sizes, stall_at=1)
    await sender.write_zerocopy(sizes[0])
    futures = []
    for number, size in enumerate(sizes[1:], 1):
        if number % 2:
            sender.write(size)
        else:
            futures.append(sender.write_zerocopy(size))
        sender.overwrite()
    sock = sender.transport.get_extra_info("socket")
    while not is_stalled(sock):
        sender.overwrite()
        await asyncio.sleep(0.001)
    assert sender.transport.get_write_buffer_size() > 0
    assert asyncio.get_running_loop().zcloop_stats().zerocopy_outstanding > 0
    return sender, futures


async def overwriting(sender, awaitable):
    """Await something while memory is overwritten as it becomes free."""
    task = asyncio.ensure_future(awaitable)
    while not task.done():
        sender.overwrite()
        await asyncio.sleep(0.001)
    return await task


@FAMILIES
async def test_bulk_in_auto_is_never_copied(peer, family):
    sizes = [MIB] * (256 if family == socket.AF_INET else 16)
    sender = await connect(peer, sizes, family)
    for size in sizes:
        sender.write(size)
        await sender.drain()
        sender.overwrite()
    sender.transport.write_eof()
    assert await overwriting(sender, peer.outcome()) == (sum(sizes), "end")
    await sender.all_let_go()
    stats = sender.transport.get_extra_info("zcloop")
    sender.transport.close()
    await sender.lost
    assert stats.zerocopy_copied == 0
    assert stats.zerocopy_completed == stats.zerocopy_sends > 0
    # What was written before the trial's completion came is copied.
    assert stats.zerocopy_bytes >= 0.9 * sum(sizes)


async def test_mutable_buffers_of_all_sizes(peer):
    sizes = [300_000, 1, 4096, MIB - 1, 65_536, 200_001] * 16
    sender = await connect(peer, sizes)
    futures = []
    for size in sizes:
        futures.append(sender.write_zerocopy(size))
        await sender.drain()
        sender.overwrite()
    await overwriting(sender, asyncio.gather(*futures))
    sender.transport.close()
    assert await peer.outcome() == (sum(sizes), "end")
    await sender.all_let_go()
    stats = sender.transport.get_extra_info("zcloop")
    assert stats.zerocopy_copied == 0
    assert stats.zerocopy_completed == stats.zerocopy_sends > 0


async def test_a_stalled_peers_messages_are_held(peer):
    sizes = [MIB] * 16
    sender, futures = await connect_and_fill(peer, sizes)
    peer.tell("read")
    await overwriting(sender, asyncio.gather(*futures))
    sender.transport.write_eof()
    assert await overwriting(sender, peer.outcome()) == (sum(sizes), "end")
    await sender.all_let_go()
    sender.transport.close()
    await sender.lost


async def test_cancelling_the_future_keeps_the_hold(peer):
    sizes = [MIB] * 17      # the last one is mutable
    sender, futures = await connect_and_fill(peer, sizes)
    held = sender.overwrite()
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
    # What the peer's window took last may complete meanwhile; were the holds gone with the
    # futures, all would be free.
    assert sender.overwrite() >= held - 2 > 0
    peer.tell("read")
    sender.transport.close()
    assert await overwriting(sender, peer.outcome()) == (sum(sizes), "end")
    await sender.all_let_go()


async def test_close_with_sends_in_flight_delivers_all(peer):
    sizes = [MIB] * 16
    sender, futures = await connect_and_fill(peer, sizes)
    sender.transport.close()
    assert sender.overwrite()
    peer.tell("read")
    assert await overwriting(sender, peer.outcome()) == (sum(sizes), "end")
    assert await sender.lost is None
    await overwriting(sender, asyncio.gather(*futures))
    await sender.all_let_go()


async def test_abort_lets_go_though_the_peer_stalls(peer):
    sizes = [MIB] * 16
    sender, futures = await connect_and_fill(peer, sizes)
    sender.transport.abort()
    await sender.all_let_go()
    assert await sender.lost is None
    await asyncio.gather(*futures, return_exceptions=True)
    peer.tell("read")
    received, ended = await peer.outcome()
    assert MIB <= received < sum(sizes)
    assert ended == "reset"


async def test_abort_in_the_middle_of_a_stream(peer):
    """The card is sending when the memory becomes free."""
    sizes = [MIB] * 16
    sender = await connect(peer, sizes)
    await sender.write_zerocopy(sizes[0])
    futures = [sender.write_zerocopy(size) for size in sizes[1:]]
    await overwriting(sender, futures[3])
    while not asyncio.get_running_loop().zcloop_stats().zerocopy_outstanding:
        await asyncio.sleep(0)
    sender.transport.abort()
    await sender.all_let_go()
    await asyncio.gather(*futures, return_exceptions=True)
    received, _ = await peer.outcome()      # the peer may have taken all that the kernel had
    assert 5 * MIB <= received < sum(sizes)


def test_a_peer_that_stays_silent_is_given_up(peer):
    """After close(), within the linger time; what is still in flight then is let go of."""
    config = zcloop.Config(zerocopy_linger=0.5)

    async def main():
        sizes = [MIB] * 16
        sender, futures = await connect_and_fill(peer, sizes)
        sender.transport.close()
        await sender.all_let_go()
        await sender.lost
        await asyncio.gather(*futures, return_exceptions=True)
        peer.tell("read")
        received, ended = await peer.outcome()
        assert MIB <= received < sum(sizes)
        assert ended == "reset"

    with asyncio.Runner(loop_factory=lambda: zcloop.new_event_loop(config)) as runner:
        runner.run(main())




def random_streams(rng):
    """Each way in which a sender ends, with each in which its peer behaves, four times."""
    ways = [(ours, theirs) for ours in ("close", "abort")
            for theirs in ("read", "leave", "stall")] * 4
    rng.shuffle(ways)
    streams = []
    for index, (ours, theirs) in enumerate(ways):
        sizes = [int(2 ** rng.uniform(0, 20)) for _ in range(rng.randrange(2, 12))] + [MIB]
        streams.append((ours, (index * 100, sizes, theirs)))
    return streams


async def test_many_connections_end_in_all_ways(peer):
    rng = random.Random(5)
    streams = random_streams(rng)
    peer.start(peers.receive_many, [stream for _, stream in streams])
    address = await peer.told()
    loop = asyncio.get_running_loop()
    senders = []
    for _, (first, _, _) in streams:
        _, sender = await loop.create_connection(lambda first=first: Sender(first), *address)
        senders.append(sender)

    futures = []

    async def run(sender, ours, sizes):
        for size in sizes:
            if rng.random() < 0.5:
                sender.write(size)
            else:
                futures.append(sender.write_zerocopy(size))
            if rng.random() < 0.5 and not sender.lost.done():
                await asyncio.sleep(0)
            sender.overwrite()
        if ours == "close":
            sender.transport.close()
        else:
            sender.transport.abort()

    await asyncio.gather(*(run(sender, ours, sizes) for sender, (ours, (_, sizes, _))
                           in zip(senders, streams, strict=True)))
    assert loop.zcloop_stats().zerocopy_outstanding
    peer.tell("read")
    outcome = asyncio.ensure_future(peer.outcome())
    while not outcome.done():
        for sender in senders:
            sender.overwrite()
        await asyncio.sleep(0.001)
    for (ours, (_, sizes, theirs)), result in zip(streams, outcome.result(), strict=True):
        if ours == "close" and theirs != "leave":
            assert result == (sum(sizes), "end")
        else:
            assert result[0] <= sum(sizes)
    for sender in senders:
        await sender.lost
        await sender.all_let_go()
    await asyncio.gather(*futures, return_exceptions=True)
