"""The receive window of connections that will map into contiguous memory: opened in time, not for
others, without locking the receive buffer, and at the listener for those that come next.

What it is for, that a full window cuts no segment, shows only where a card puts segments into
pages: tests/nic.
"""
import asyncio
import errno
import socket

import pytest
from page_link import Keep, noise, page_link, page_listener, poll, send_pages, send_plain
from support import RecordingProtocol, assert_same, listener, settle

import zcloop
from zcloop import pages

pytestmark = pytest.mark.loops("zcloop")
SO_BUF_LOCK, LOCKED_RECEIVE = 72, 2     # Linux 5.14
MIB = 1 << 20
DATA = noise(MIB)


class Filler(asyncio.BufferedProtocol):
    """Fills a PageBuffer, made before it is connected."""

    def __init__(self, size=MIB, exact=False):
        self.memory = zcloop.PageBuffer(size, exact=exact)
        self.filled = 0
        self.ended = False
        self.transport = None

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        view = memoryview(self.memory)[self.filled:]
        return view if len(view) else bytearray(1)

    def buffer_updated(self, nbytes):
        self.filled += nbytes

    def connection_lost(self, exc):
        self.ended = True


class Plain(asyncio.BufferedProtocol):
    """Lends memory of its own."""

    def __init__(self):
        self.ended = False
        self.transport = None

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return bytearray(1000)

    def buffer_updated(self, nbytes):
        pass

    def connection_lost(self, exc):
        self.ended = True


def large():
    """The least that an opened receive buffer has: half of tcp_rmem's maximum, or 4 MiB."""
    with open("/proc/sys/net/ipv4/tcp_rmem") as file:
        _, initial, most = map(int, file.read().split())
    assert min(most // 2, 4 * MIB) > initial
    return min(most // 2, 4 * MIB)


def is_open(transport):
    sock = transport.get_extra_info("socket")
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= large()


def is_locked(transport):
    sock = transport.get_extra_info("socket")
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) & LOCKED_RECEIVE)
    except OSError as exc:
        assert exc.errno == errno.ENOPROTOOPT
        return False


async def started(transport):
    await poll(lambda: transport.is_reading())
    await asyncio.sleep(0)


@pytest.mark.parametrize("exact", [False, True])
async def test_before_the_first_byte_of_a_page_buffer(exact):
    async with page_link(lambda: Filler(exact=exact)) as (transport, protocol, peer):
        await started(transport)
        assert is_open(transport) and not is_locked(transport)
        assert transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        await send_pages(peer, DATA)
        await poll(lambda: protocol.filled == len(DATA))
        assert_same(bytes(protocol.memory), DATA)
        assert transport.get_extra_info("zcloop").bytes_mapped >= 0.98 * len(DATA)


async def test_when_a_view_is_read():
    with page_listener() as listener:
        reader, writer = await zcloop.open_connection(*listener.getsockname())
        peer, _ = listener.accept()
        with peer:
            assert not is_open(writer.transport)
            reading = asyncio.ensure_future(reader.readview(len(DATA)))
            await asyncio.sleep(0)
            assert is_open(writer.transport) and not is_locked(writer.transport)
            await send_plain(peer, DATA)
            assert_same(bytes(await reading), DATA)
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize("factory", [Keep, asyncio.Protocol, lambda: Filler(4096)])
async def test_not_for_what_needs_none(factory, monkeypatch):
    """Views of pages begin anywhere; small messages fit the window that there is."""
    monkeypatch.setattr(pages, "_large_made", False)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport, _ = await loop.create_connection(factory, *listener.getsockname())
        peer, _ = listener.accept()
        with peer:
            await started(transport)
            assert not is_open(transport)
            transport.abort()


async def test_not_where_everything_is_copied():
    def main():
        async def run():
            async with page_link(Filler) as (transport, _, _peer):
                await started(transport)
                return is_open(transport)
        return zcloop.run(run(), config=zcloop.Config(receive="copy"))

    assert await asyncio.to_thread(main) is False


async def test_the_listener_has_it_for_its_next_connections():
    loop = asyncio.get_running_loop()
    made = []

    def factory():
        made.append(Filler())
        return made[-1]

    server = await loop.create_server(factory, "127.0.0.1", 0)
    listener = server.sockets[0]
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < large()
    with socket.create_connection(listener.getsockname()):
        await poll(lambda: made and made[0].transport)
        await poll(lambda: listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= large())
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
    await poll(lambda: made[0].ended)
    server.close()
    await server.wait_closed()


async def test_a_listener_without_page_buffers_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(pages, "_large_made", False)
    loop = asyncio.get_running_loop()
    made = []

    def factory():
        made.append(Plain())
        return made[-1]

    server = await loop.create_server(factory, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        await poll(lambda: made and made[0].transport)
        await started(made[0].transport)
        assert not is_open(made[0].transport)
    await poll(lambda: made[0].ended)
    assert server.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < large()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("first", [Filler, RecordingProtocol], ids=["ours", "another process"])
async def test_what_a_listener_with_a_window_accepts_is_readable(first):
    """Each connection has the listener's own mark, also the one that it made while opening,
    whoever opened it: processes may share a listener."""
    made = []

    def factory():
        made.append(RecordingProtocol() if made else first())
        return made[-1]

    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    with socket.create_connection(address):
        await poll(lambda: made and made[0].transport)
        listening = server.sockets[0]
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 4 * MIB)
        with socket.create_connection(address) as peer:     # inherits the mark
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            peer.send(b"x")
            await poll(lambda: len(made) == 2 and made[1].data == b"x")
    server.close()
    await server.wait_closed()


async def test_a_mark_of_the_program_s_own():
    """A socket that came with one keeps it, and `set_read_lowat` knows of it."""
    own = socket.socket()
    with listener() as listening:
        own.connect(listening.getsockname())
        peer, _ = listening.accept()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1000)
    with peer:
        transport, protocol = await asyncio.get_running_loop().create_connection(
            RecordingProtocol, sock=own)
        peer.sendall(bytes(500))
        await settle()
        assert protocol.data == b""
        transport.set_read_lowat(1)
        await poll(lambda: protocol.data == bytes(500))
        transport.close()
        await protocol.called("connection_lost")
