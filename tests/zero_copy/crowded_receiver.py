"""Receives by one of the doors for pages while the process may have few mappings more, or none.

Started by test_map_room.py, with the environment of crowded.py: crowded_receiver.py DOOR
Prints what was counted, as JSON.  All bytes must have come, right and in order.
"""
import asyncio
import contextlib
import json
import mmap
import socket
import sys

from crowded import Crowd
from page_link import MSG_EOR, MSG_ZEROCOPY, PAGE, Keep, noise, page_link, page_listener, page_peer
from support import poll

import zcloop
from zcloop import pages

SIZE = 512 * 1024
SIZES = (SIZE, 200_000, PAGE, SIZE - PAGE, 70_001, 1, SIZE)
PAGES = MSG_ZEROCOPY | MSG_EOR
LEFT = (0, 1, 2, 4, 6, 8, 12)

SOURCE = mmap.mmap(-1, SIZE)        # made before there is no room for it
SOURCE[:] = noise(SIZE)
VIEW = memoryview(SOURCE)


class Reuser(asyncio.BufferedProtocol):
    """Receives each message into the same PageBuffer, from its beginning on."""

    def __init__(self, exact):
        self.page_buffer = zcloop.PageBuffer(SIZE, exact=exact)
        self.transport = self.exc = None
        self.ended = False
        self.have, self.message = 0, SIZE

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return memoryview(self.page_buffer)[self.have:self.message]

    def buffer_updated(self, nbytes):
        self.have += nbytes
        if self.have == self.message:
            self.transport.pause_reading()

    def connection_lost(self, exc):
        self.exc, self.ended = exc, True

    async def take(self, nbytes):
        self.have, self.message = 0, nbytes
        self.transport.resume_reading()
        await poll(lambda: self.have == nbytes or self.ended)
        assert not self.ended, self.exc
        assert memoryview(self.page_buffer)[:nbytes] == VIEW[:nbytes]


class Keeper(Keep):
    """Gets views, and keeps those of the last message."""

    async def take(self, nbytes):
        await self.until(nbytes)
        assert not self.ended, self.exc
        at = 0
        for part in self.parts:
            assert part == VIEW[at:at + len(part)]
            at += len(part)
        assert at == nbytes
        self.parts.clear()
        self.have = 0


async def send(peer, nbytes, flags):
    at = 0
    while at < nbytes:
        try:
            at += peer.send(VIEW[at:nbytes], flags | socket.MSG_DONTWAIT)
        except BlockingIOError:
            await asyncio.sleep(0)
        with contextlib.suppress(BlockingIOError):      # completions, which use up memory
            while True:
                peer.recvmsg(0, 256, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)


async def exchange(peer, take, left):
    """Messages of all sizes, as pages and not, with room, without, and with room again."""
    async def one(nbytes, flags):
        sending = asyncio.ensure_future(send(peer, nbytes, flags))
        await take(nbytes)
        await sending

    for room in left:
        await one(SIZE, PAGES)
        with Crowd(room):
            for flags in (PAGES, 0):
                for nbytes in SIZES:
                    await one(nbytes, flags)
    await one(SIZE, PAGES)


@contextlib.asynccontextmanager
async def stream_link():
    streams = asyncio.get_running_loop().create_future()
    server = await zcloop.start_server(
        lambda *both: streams.set_result(both), sock=page_listener())
    peer = page_peer(server.sockets[0].getsockname())
    reader, writer = await streams
    server.close()
    try:
        yield writer.transport, reader, peer
    finally:
        peer.close()
        writer.close()
        await writer.wait_closed()


async def main(door):
    if door == "readview":
        link = stream_link()
    else:
        link = page_link({"pages": Keeper, "buffer": lambda: Reuser(exact=False),
                          "exact": lambda: Reuser(exact=True)}[door])
    async with link as (transport, receiver, peer):
        take = receiver.take if door != "readview" else None

        async def take_view(nbytes):
            assert await receiver.readview(nbytes) == VIEW[:nbytes]

        await exchange(peer, take or take_view, LEFT)
        stats, process = transport.get_extra_info("zcloop"), pages.page_stats()
        print(json.dumps({"mapped": stats.bytes_mapped, "not_moved": stats.map_not_moved,
                          "copied_out": process.copied_out}))
    zcloop.PageBuffer(1)        # which is when what waits to be unmapped is tried again
    assert pages.page_stats().unmap_waiting_bytes == 0


if __name__ == "__main__":
    zcloop.run(main(sys.argv[1]), config=zcloop.Config(receive="map"))
