"""What a stream transport is, before any byte moves."""
import asyncio
import socket

import pytest
from support import KINDS, RecordingBuffered, RecordingProtocol, known_gap, link, poll, settle

pytestmark = pytest.mark.parametrize("kind", KINDS)


@known_gap("uvloop", "its transports are not asyncio.Transport instances")
async def test_is_an_asyncio_transport(kind):
    async with link(kind) as (transport, _, _):
        assert isinstance(transport, asyncio.Transport)


async def test_connection_made_comes_once_and_first(kind):
    async with link(kind) as (transport, protocol, peer):
        peer.send(b"x")
        await protocol.received(1)
        assert protocol.calls == ["connection_made", "data_received"]
        assert protocol.transport is transport


async def test_extra_info(kind):
    async with link(kind) as (transport, _, peer):
        sock = transport.get_extra_info("socket")
        assert sock.fileno() > 0
        assert sock.type == socket.SOCK_STREAM
        assert sock.family == peer.family
        assert sock.getsockname() == peer.getpeername()
        if kind.startswith("tcp"):
            assert transport.get_extra_info("sockname") == peer.getpeername()
            assert transport.get_extra_info("peername") == peer.getsockname()
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert transport.get_extra_info("nonsense") is None
        assert transport.get_extra_info("nonsense", 5) == 5


async def test_extra_info_of_unix_paths(kind):
    if not kind.startswith("unix"):
        kind = kind.replace("tcp", "unix")
    async with link(kind) as (transport, _, peer):
        assert transport.get_extra_info("sockname") == peer.getpeername()
        assert transport.get_extra_info("peername") == peer.getsockname()


async def test_extra_info_survives_close(kind):
    async with link(kind) as (transport, protocol, peer):
        if kind.startswith("tcp"):
            names = peer.getpeername(), peer.getsockname()
            transport.close()
            await protocol.called("connection_lost")
            assert transport.get_extra_info("sockname") == names[0]
            assert transport.get_extra_info("peername") == names[1]


async def test_states(kind):
    async with link(kind) as (transport, protocol, _peer):
        assert transport.is_reading() is True
        assert transport.is_closing() is False
        assert transport.can_write_eof() is True
        transport.close()
        assert transport.is_closing() is True
        assert transport.is_reading() is False
        assert protocol.calls == ["connection_made"]      # connection_lost comes by the loop
        transport.close()                                 # and a second close changes nothing
        await protocol.called("connection_lost")
        transport.close()
        transport.abort()
        await settle()
        assert protocol.calls == ["connection_made", "connection_lost"]
        assert protocol.exc is None
        assert transport.is_closing() is True
        assert transport.is_reading() is False


async def test_close_closes_the_socket(kind):
    async with link(kind) as (transport, protocol, peer):
        transport.close()
        await protocol.called("connection_lost")
        assert await asyncio.get_running_loop().sock_recv(peer, 1) == b""
        sock = transport.get_extra_info("socket")
        await poll(lambda: sock is None or sock.fileno() == -1)


async def test_abort_is_not_an_error(kind):
    async with link(kind) as (transport, protocol, _):
        transport.abort()
        assert transport.is_closing() is True
        assert protocol.calls == ["connection_made"]
        await protocol.called("connection_lost")
        assert protocol.exc is None


async def test_closing_in_connection_made(kind):
    def hook(protocol, name):
        if name == "connection_made":
            protocol.transport.close()
    async with link(kind, lambda: RecordingProtocol(hook=hook)) as (_, protocol, _):
        await protocol.called("connection_lost")
        assert protocol.calls == ["connection_made", "connection_lost"]


async def test_get_and_set_protocol(kind):
    async with link(kind) as (transport, first, peer):
        assert transport.get_protocol() is first
        second = RecordingProtocol()
        transport.set_protocol(second)
        assert transport.get_protocol() is second
        peer.send(b"for the second")
        await second.received(14)
        assert not first.data
        transport.close()
        await second.called("connection_lost")
        assert first.calls == ["connection_made"]
        assert "connection_made" not in second.calls


@pytest.mark.parametrize("start, then", [
    (RecordingProtocol, RecordingBuffered), (RecordingBuffered, RecordingProtocol),
    (RecordingBuffered, RecordingBuffered)])
async def test_set_protocol_of_the_other_kind(kind, start, then):
    async with link(kind, start) as (transport, first, peer):
        peer.send(b"one")
        await first.received(3)
        second = then()
        transport.set_protocol(second)
        peer.send(b"two")
        await second.received(3)
        assert (first.data, second.data) == (b"one", b"two")
        transport.set_protocol(first)
        peer.send(b"three")
        await first.received(8)
        assert (first.data, second.data) == (b"onethree", b"two")


async def test_set_protocol_while_paused(kind):
    async with link(kind) as (transport, first, peer):
        transport.pause_reading()
        peer.send(b"waiting")
        await settle()
        second = RecordingBuffered()
        transport.set_protocol(second)
        transport.resume_reading()
        await second.received(7)
        assert (first.data, second.data) == (b"", b"waiting")


async def test_repr(kind):
    ended = ("clos", "lost")
    async with link(kind) as (transport, protocol, _):
        text = repr(transport).replace("closed=False", "")
        assert "Transport" in text
        assert not any(word in text for word in ended)
        transport.close()
        assert any(word in repr(transport) for word in ended)
        await protocol.called("connection_lost")
        assert any(word in repr(transport) for word in ended)


async def test_reading_is_not_started_before_connection_made(kind):
    """Bytes sent at once must wait: the protocol would see them without a transport."""
    async with link(kind) as (_transport, protocol, peer):
        peer.send(b"early")
        await protocol.received(5)
        assert protocol.calls[0] == "connection_made"
