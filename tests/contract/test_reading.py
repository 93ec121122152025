"""Receiving: pausing, order, end of file, and sizes."""
import asyncio
import hashlib
import socket

import pytest
from support import (
    FACTORIES,
    RecordingBuffered,
    RecordingProtocol,
    assert_same,
    known_gap,
    link,
    pattern,
    poll,
    recv_exactly,
    settle,
)

pytestmark = pytest.mark.parametrize("kind", ["tcp-server", "unix-client"])
both = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)


@both
async def test_bytes_come_in_order(kind, factory):
    loop = asyncio.get_running_loop()
    data = pattern(3_000_000)
    async with link(kind, factory) as (_, protocol, peer):
        await loop.sock_sendall(peer, data)
        await protocol.received(len(data))
        assert hashlib.sha256(protocol.data).digest() == hashlib.sha256(data).digest()


@both
async def test_many_small_messages(kind, factory):
    async with link(kind, factory) as (_, protocol, peer):
        for n in range(300):
            peer.send(b"%03d" % n)
            await protocol.received(3 * n + 3)
        assert protocol.data == b"".join(b"%03d" % n for n in range(300))


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 65536, 262144, 1 << 20])
async def test_buffer_of_any_size(kind, size):
    data = pattern(min(200 * size, 1_500_000))
    async with link(kind, lambda: RecordingBuffered(size)) as (_, protocol, peer):
        await asyncio.get_running_loop().sock_sendall(peer, data)
        await protocol.received(len(data))
        assert_same(protocol.data, data)
        assert all(hint == -1 or hint > 0 for hint in protocol.hints)


async def test_a_new_buffer_each_time(kind):
    """get_buffer may lend another one for every read; a memoryview slice is a buffer too."""
    class Sliced(RecordingBuffered):
        def get_buffer(self, sizehint):
            self.whole = bytearray(64)
            self.buffer = memoryview(self.whole)[16:48]
            return self.buffer

        def buffer_updated(self, nbytes):
            assert not any(self.whole[:16]) and not any(self.whole[48:])
            super().buffer_updated(nbytes)
    data = bytes(range(1, 251)) * 20
    async with link(kind, Sliced) as (_, protocol, peer):
        peer.send(data)
        await protocol.received(len(data))
        assert_same(protocol.data, data)


@both
async def test_pause_and_resume(kind, factory):
    async with link(kind, factory) as (transport, protocol, peer):
        transport.pause_reading()
        assert transport.is_reading() is False
        transport.pause_reading()                   # idempotent since 3.7
        peer.send(b"held back")
        await settle()
        assert protocol.data == b""
        transport.resume_reading()
        assert transport.is_reading() is True
        transport.resume_reading()
        await protocol.received(9)
        assert protocol.data == b"held back"


@both
async def test_pause_at_once_is_obeyed(kind, factory):
    """Readable before the pause, in the same turn of the loop: still not delivered."""
    async with link(kind, factory) as (transport, protocol, peer):
        for _ in range(20):
            peer.send(b"x")
            transport.pause_reading()
            await settle(2)
            seen = len(protocol.data)
            transport.resume_reading()
            await protocol.received(seen + 1)
            assert len(protocol.data) == seen + 1


@both
async def test_pause_inside_the_callback_stops_delivery(kind, factory):
    def hook(protocol, name):
        if name in ("data_received", "buffer_updated"):
            protocol.transport.pause_reading()
    data = pattern(2_000_000)
    async with link(kind, lambda: factory(hook=hook)) as (transport, protocol, peer):
        sender = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(peer, data))
        calls = 0
        while len(protocol.data) < len(data):
            await protocol.until(lambda seen=calls: len(protocol.calls) > seen + 1)
            await settle(2)
            calls += 1
            assert len(protocol.calls) == calls + 1     # one delivery, then silence
            transport.resume_reading()
        await sender
        assert_same(protocol.data, data)


@both
async def test_resume_inside_the_callback(kind, factory):
    def hook(protocol, name):
        if name in ("data_received", "buffer_updated"):
            protocol.transport.pause_reading()
            protocol.transport.resume_reading()
    data = pattern(500_000)
    async with link(kind, lambda: factory(hook=hook)) as (_, protocol, peer):
        await asyncio.get_running_loop().sock_sendall(peer, data)
        await protocol.received(len(data))
        assert_same(protocol.data, data)


@known_gap("uvloop", "it starts reading after connection_made whatever that did")
async def test_pause_in_connection_made(kind):
    def hook(protocol, name):
        if name == "connection_made":
            protocol.transport.pause_reading()
    async with link(kind, lambda: RecordingProtocol(hook=hook)) as (transport, protocol, peer):
        peer.send(b"later")
        await settle()
        assert protocol.data == b""
        assert transport.is_reading() is False
        transport.resume_reading()
        await protocol.received(5)


@both
async def test_end_of_file_while_paused_comes_after_the_data(kind, factory):
    async with link(kind, factory) as (transport, protocol, peer):
        transport.pause_reading()
        peer.send(b"last words")
        peer.close()
        await settle()
        assert protocol.calls == ["connection_made"]
        transport.resume_reading()
        await protocol.called("connection_lost")
        assert protocol.data == b"last words"
        assert protocol.calls[-2:] == ["eof_received", "connection_lost"]
        assert protocol.exc is None


@both
async def test_end_of_file_has_a_turn_of_its_own(kind, factory):
    """The last bytes and the FIN arrive together; what the callback scheduled runs in between."""
    loop = asyncio.get_running_loop()

    def hook(protocol, name):
        if name in ("data_received", "buffer_updated"):
            loop.call_soon(protocol.calls.append, "scheduled")

    async with link(kind, lambda: factory(hook=hook)) as (_, protocol, peer):
        for _ in range(2):          # what has been busy is also looked at more than once a turn
            peer.send(b"some")
            await protocol.received(4)
            protocol.data.clear()
            protocol.calls.clear()
        peer.send(b"last")
        peer.shutdown(socket.SHUT_WR)
        await protocol.called("connection_lost")
        assert protocol.calls[1:] == ["scheduled", "eof_received", "connection_lost"]


@both
async def test_pause_between_the_last_bytes_and_the_end_of_file(kind, factory):
    """Both have arrived; the pause is obeyed, and resuming tells of the end."""
    loop = asyncio.get_running_loop()

    def hook(protocol, name):
        if name in ("data_received", "buffer_updated"):
            loop.call_soon(protocol.transport.pause_reading)

    async with link(kind, lambda: factory(hook=hook)) as (transport, protocol, peer):
        peer.send(b"last")
        peer.shutdown(socket.SHUT_WR)
        await protocol.received(4)
        await settle()
        assert not transport.is_reading()
        assert "eof_received" not in protocol.calls
        transport.resume_reading()
        await protocol.called("connection_lost")
        assert protocol.calls[-2:] == ["eof_received", "connection_lost"]



@both
@pytest.mark.parametrize("result", [None, False])
async def test_end_of_file_closes(kind, factory, result):
    async with link(kind, lambda: factory(eof_result=result)) as (transport, protocol, peer):
        peer.send(b"bye")
        peer.close()
        await protocol.called("connection_lost")
        assert protocol.data == b"bye"
        assert protocol.calls[-2:] == ["eof_received", "connection_lost"]
        assert protocol.exc is None
        assert transport.is_closing()


@both
async def test_half_close(kind, factory):
    """eof_received returned true: the other direction stays open until closed."""
    loop = asyncio.get_running_loop()
    async with link(kind, lambda: factory(eof_result=True)) as (transport, protocol, peer):
        peer.send(b"question")
        peer.shutdown(1)
        await protocol.called("eof_received")
        await settle()
        assert protocol.calls.count("eof_received") == 1
        assert "connection_lost" not in protocol.calls
        assert not transport.is_closing()
        transport.write(b"answer")
        assert await loop.sock_recv(peer, 100) == b"answer"
        transport.close()
        await protocol.called("connection_lost")
        assert protocol.exc is None
        assert await loop.sock_recv(peer, 100) == b""


async def test_resume_after_end_of_file_is_harmless(kind):
    async with link(kind, lambda: RecordingProtocol(eof_result=True)) as (
            transport, protocol, peer):
        peer.shutdown(1)
        await protocol.called("eof_received")
        transport.pause_reading()
        transport.resume_reading()
        transport.write(b"still open")
        assert await recv_exactly(peer, 10) == b"still open"
        assert set(protocol.calls) == {"connection_made", "eof_received"}


async def test_close_inside_the_callback_ends_delivery(kind):
    def hook(protocol, name):
        if name == "data_received":
            protocol.transport.close()
    async with link(kind, lambda: RecordingProtocol(hook=hook)) as (_, protocol, peer):
        peer.send(b"first")
        await protocol.called("connection_lost")
        assert protocol.calls == ["connection_made", "data_received", "connection_lost"]


async def test_nothing_after_close(kind):
    async with link(kind) as (transport, protocol, peer):
        peer.send(b"unread")
        transport.close()
        await protocol.called("connection_lost")
        await settle()
        assert protocol.calls == ["connection_made", "connection_lost"]


@pytest.mark.parametrize("start", FACTORIES.values(), ids=FACTORIES)
@pytest.mark.parametrize("then", FACTORIES.values(), ids=FACTORIES)
async def test_set_protocol_from_within_the_callback(kind, start, then):
    """All bytes once and in order when every delivery hands over to another protocol."""
    received, data = bytearray(), pattern(400_000)
    tasks = []

    def hook(protocol, name):
        if name in ("data_received", "buffer_updated"):
            received.extend(protocol.data)
            other = (then if type(protocol) is start else start)(hook=hook)
            other.transport = protocol.transport
            protocol.transport.set_protocol(other)
            tasks.append(protocol)
            assert len(protocol.calls) - protocol.calls.count("connection_made") == 1
    async with link(kind, lambda: start(hook=hook)) as (_, _, peer):
        await asyncio.get_running_loop().sock_sendall(peer, data)
        await poll(lambda: len(received) >= len(data))
        assert_same(received, data)


async def test_data_after_close_from_set_protocol(kind):
    """The protocol set last gets connection_lost."""
    async with link(kind) as (transport, first, peer):
        second = RecordingBuffered()
        transport.set_protocol(second)
        peer.close()
        await second.called("connection_lost")
        assert second.calls == ["eof_received", "connection_lost"]
        assert first.calls == ["connection_made"]


async def fatal(kind, factory, loop_errors):
    """Provoke one read with a wrong buffer; returns what the protocol and the handler got."""
    async with link(kind, factory) as (_, protocol, peer):
        peer.send(b"x")
        await protocol.called("connection_lost")
        contexts = loop_errors[:]
        loop_errors.clear()
        return protocol, contexts


@pytest.mark.parametrize("wrong", [b"", bytearray(), memoryview(b"")])
async def test_empty_buffer_is_fatal(kind, wrong, loop_errors):
    class Wrong(RecordingBuffered):
        def get_buffer(self, sizehint):
            return wrong
    protocol, contexts = await fatal(kind, Wrong, loop_errors)
    assert isinstance(protocol.exc, RuntimeError)
    assert "empty buffer" in str(protocol.exc)
    assert [type(c["exception"]) for c in contexts] == [RuntimeError]
    assert protocol.calls == ["connection_made", "connection_lost"]


@known_gap("uvloop", "it reports every wrong buffer as an empty one")
@pytest.mark.parametrize("wrong", [None, 5, "text", [1, 2]])
async def test_not_a_buffer_is_fatal(kind, wrong, loop_errors):
    class Wrong(RecordingBuffered):
        def get_buffer(self, sizehint):
            return wrong
    protocol, contexts = await fatal(kind, Wrong, loop_errors)
    assert isinstance(protocol.exc, TypeError)
    assert [type(c["exception"]) for c in contexts] == [TypeError]


@known_gap("uvloop", "it reports every wrong buffer as an empty one")
async def test_read_only_buffer_is_fatal(kind, loop_errors):
    class Wrong(RecordingBuffered):
        def get_buffer(self, sizehint):
            return b"read-only"
    protocol, contexts = await fatal(kind, Wrong, loop_errors)
    assert isinstance(protocol.exc, (TypeError, BufferError))
    assert len(contexts) == 1
