"""Connections over loopback whose pages can be mapped, for the tests of this folder.

The segments are whole pages (TCP_MAXSEG before both ends meet), and the raw peer sends with
MSG_ZEROCOPY, whose forced copy on loopback lands in pages of their own.
"""
import asyncio
import contextlib
import mmap
import random
import socket

from support import poll

import zcloop

PAGE = 4096
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
MSG_EOR = socket.MSG_EOR
MAXSEG = PAGE + 12


def page_listener():
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MAXSEG)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


class PagePeer(socket.socket):
    """Keeps what it sends without a copy: the kernel reads it until the receiver has it."""

    def __init__(self):
        super().__init__()
        self.kept = []


def page_peer(address):
    """A blocking socket, connected; what `send_pages` sends from it can be mapped."""
    sock = PagePeer()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MAXSEG)
    sock.connect(address)
    sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


async def send_pages(peer, data):
    """Send all of it as pages, from memory that begins on one; the loop runs meanwhile."""
    pages = mmap.mmap(-1, len(data))
    pages[:] = data
    peer.kept.append(pages)
    view = memoryview(pages)
    while view:
        try:
            view = view[peer.send(view, MSG_ZEROCOPY | MSG_EOR | socket.MSG_DONTWAIT):]
        except BlockingIOError:
            await asyncio.sleep(0)


def send_small(peer, data):
    """Send a header or a tail in a segment of its own, which nothing is appended to."""
    assert peer.send(data, MSG_EOR) == len(data)


async def send_plain(peer, data):
    """The same without pages."""
    view = memoryview(data)
    while view:
        try:
            view = view[peer.send(view, socket.MSG_DONTWAIT):]
        except BlockingIOError:
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def page_link(factory):
    """(transport, protocol, peer), the loop's end being the server's."""
    loop = asyncio.get_running_loop()
    made = []

    def make():
        made.append(factory())
        return made[-1]

    server = await loop.create_server(make, sock=page_listener())
    peer = page_peer(server.sockets[0].getsockname())
    try:
        await poll(lambda: made and made[0].transport)
        protocol = made[0]
        server.close()
        yield protocol.transport, protocol, peer
    finally:
        server.close()
        peer.close()
        if made and not made[0].ended:
            made[0].transport.abort()
            await poll(lambda: made[0].ended)


class Keep(zcloop.PagesProtocol):
    """Keeps every byte, in order, however it came."""

    def __init__(self, size=64 * 1024):
        self.transport = None
        self.parts = []
        self.views = 0
        self.buffer = bytearray(size)
        self.have = 0
        self.ended = False
        self.eof = False
        self.exc = None

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.buffer

    def add(self, part):
        self.parts.append(part)
        self.have += len(part)

    def buffer_updated(self, nbytes):
        assert 0 < nbytes <= len(self.buffer)
        self.add(bytes(self.buffer[:nbytes]))

    def pages_received(self, view):
        assert view.readonly and view.format == "B" and view.ndim == 1
        assert len(view) % PAGE == 0
        self.views += 1
        self.add(view)

    def eof_received(self):
        self.eof = True

    def connection_lost(self, exc):
        self.exc = exc
        self.ended = True

    async def until(self, nbytes):
        await poll(lambda: self.have >= nbytes or self.ended)

    def data(self):
        return b"".join(self.parts)

    def stats(self):
        return self.transport.get_extra_info("zcloop")


def noise(nbytes, seed=1):
    return random.Random(seed).randbytes(nbytes)


__all__ = ["MAXSEG", "PAGE", "Keep", "noise", "page_link", "page_listener", "page_peer",
           "poll", "send_pages", "send_plain", "send_small"]
