"""Sending: types, order, buffer ownership, and the end of a connection."""
import array
import asyncio
import sys

import pytest
from support import (
    RecordingProtocol,
    assert_same,
    fill,
    known_gap,
    link,
    pattern,
    poll,
    recv_exactly,
    recv_to_end,
    reset,
    settle,
)

pytestmark = pytest.mark.parametrize("kind", ["tcp-client", "unix-server"])


def keeps_reference(test):
    """Where a write that must wait holds on to the caller's mutable object."""
    reason = "a write that must wait keeps the caller's object, not a copy"
    test = known_gap("asyncio", reason, when=sys.version_info >= (3, 12))(test)
    return known_gap("uvloop", reason)(test)


BUFFERS = {
    "bytes": b"abcdef",
    "bytearray": bytearray(b"abcdef"),
    "memoryview": memoryview(b"abcdef"),
    "memoryview of part": memoryview(b"xxabcdefxx")[2:-2],
    "memoryview of bytearray": memoryview(bytearray(b"abcdef")),
}


@pytest.mark.parametrize("data", BUFFERS.values(), ids=BUFFERS)
async def test_types(kind, data):
    async with link(kind) as (transport, _, peer):
        transport.write(data)
        assert await recv_exactly(peer, 6) == b"abcdef"
        transport.writelines([data, data])
        assert await recv_exactly(peer, 12) == b"abcdefabcdef"


@pytest.mark.parametrize("wrong", [5, "text", object(), [b"list"]])
async def test_wrong_types(kind, wrong):
    async with link(kind) as (transport, _, peer):
        with pytest.raises(TypeError):
            transport.write(wrong)
        with pytest.raises(TypeError):
            transport.writelines([wrong])
        with pytest.raises(TypeError):
            transport.writelines(5)
        transport.write(b"alive")
        assert await recv_exactly(peer, 5) == b"alive"


@known_gap("asyncio", "after a partial send it skips items for bytes: data is lost", run=False)
async def test_wide_items_are_counted_in_bytes(kind):
    """A memoryview of 8-byte items has len() items but nbytes bytes."""
    items = array.array("Q", range(2_500_000))
    async with link(kind) as (transport, _, peer):
        transport.write(memoryview(items))
        assert_same(await recv_exactly(peer, 20_000_000), items.tobytes())
        transport.write(b"end")
        assert await recv_exactly(peer, 3) == b"end"


async def test_empty_writes(kind):
    async with link(kind) as (transport, _, peer):
        transport.write(b"")
        transport.write(bytearray())
        transport.writelines([])
        transport.writelines([b"", b""])
        assert transport.get_write_buffer_size() == 0
        transport.writelines([b"", b"x", b"", b"y"])
        assert await recv_exactly(peer, 2) == b"xy"


@pytest.mark.parametrize("make", [list, tuple, iter, lambda pieces: (p for p in pieces)],
                         ids=["list", "tuple", "iterator", "generator"])
async def test_writelines_of_any_iterable(kind, make):
    pieces = [b"%d," % n for n in range(50)]
    async with link(kind) as (transport, _, peer):
        transport.writelines(make(pieces))
        whole = b"".join(pieces)
        assert await recv_exactly(peer, len(whole)) == whole


@pytest.mark.parametrize("count", [2, 63, 64, 65, 1023, 1024, 1025, 5000])
async def test_writelines_of_many_pieces(kind, count):
    """IOV_MAX is 1024: more pieces than one sendmsg takes."""
    pieces = [b"%06d" % n for n in range(count)]
    async with link(kind) as (transport, _, peer):
        transport.writelines(pieces)
        assert await recv_exactly(peer, 6 * count) == b"".join(pieces)


async def test_writelines_of_large_pieces(kind):
    pieces = [pattern(100_000, seed) for seed in range(30)]
    async with link(kind) as (transport, _, peer):
        transport.writelines(pieces)
        assert_same(await recv_exactly(peer, 3_000_000), b"".join(pieces))
        await poll(lambda: transport.get_write_buffer_size() == 0)


async def test_order_of_writes(kind):
    expected = bytearray()
    async with link(kind) as (transport, _, peer):
        for n in range(200):
            piece = pattern(n * 100, n)
            (transport.writelines([piece[:50], piece[50:]]) if n % 3 else transport.write(piece))
            expected += piece
        assert await recv_exactly(peer, len(expected)) == expected


async def test_writes_from_many_tasks_keep_their_order(kind):
    async with link(kind) as (transport, _, peer):
        async def writer(n):
            transport.write(b"%d" % (n % 10))
        await asyncio.gather(*map(writer, range(100)))
        assert await recv_exactly(peer, 100) == b"0123456789" * 10


class Disguised(bytes):
    """Says another content and another length than it has."""

    def __bytes__(self):
        return b"short"

    def __len__(self):
        return 7


class DisguisedArray(bytearray):
    __bytes__ = Disguised.__bytes__
    __len__ = Disguised.__len__


@pytest.mark.parametrize("size", [10, 5000, 100_000, 3_000_000])
@pytest.mark.parametrize("make", [Disguised, DisguisedArray])
@pytest.mark.parametrize("how", ["write", "write queued", "writelines"])
async def test_subclasses_are_sent_by_their_buffer(kind, make, size, how):
    """What is sent is the buffer, all of it, and nothing of what lies behind another one."""
    data = pattern(size)
    async with link(kind) as (transport, _, peer):
        sent = fill(transport) if how == "write queued" else 0
        if how == "writelines":
            transport.writelines([make(data), b"and"])
        else:
            transport.write(make(data))
        transport.write(b"end")
        expected = data + (b"andend" if how == "writelines" else b"end")
        assert_same((await recv_exactly(peer, sent + len(expected)))[sent:], expected)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 688: buffers made in Python")
@pytest.mark.parametrize("queued", [False, True])
async def test_a_buffer_that_is_another_each_time(kind, queued):
    """One of those that were lent is sent whole."""
    class Shrinking(bytes):
        def __buffer__(self, flags):
            lent.append(pattern(3_000_000 >> len(lent)))
            return memoryview(lent[-1])

    lent = []
    async with link(kind) as (transport, _, peer):
        sent = fill(transport) if queued else 0
        transport.write(Shrinking(b"something"))
        transport.write_eof()
        assert (await recv_to_end(peer))[sent:] in lent


@keeps_reference
async def test_bytearray_may_change_after_write(kind):
    async with link(kind) as (transport, _, peer):
        sent = fill(transport)
        mutable = bytearray(b"A" * 100_000)
        transport.write(mutable)
        mutable[:] = b"B" * 100_000
        assert_same((await recv_exactly(peer, sent + 100_000))[sent:], b"A" * 100_000)


@keeps_reference
async def test_bytearray_may_be_resized_after_write(kind):
    async with link(kind) as (transport, _, peer):
        mutable = bytearray(b"A" * 20_000_000)      # more than any socket buffer takes at once
        transport.write(mutable)
        del mutable[:10]
        mutable.clear()
        assert_same(await recv_exactly(peer, 20_000_000), b"A" * 20_000_000)


@keeps_reference
async def test_writelines_of_bytearrays_may_change(kind):
    async with link(kind) as (transport, _, peer):
        sent = fill(transport)
        pieces = [bytearray(b"A" * 1000) for _ in range(100)]
        transport.writelines(pieces)
        for piece in pieces:
            piece[:] = b"B" * 1000
        assert_same((await recv_exactly(peer, sent + 100_000))[sent:], b"A" * 100_000)


@keeps_reference
async def test_memoryview_may_be_released_and_change(kind):
    async with link(kind) as (transport, _, peer):
        sent = fill(transport)
        mutable = bytearray(b"A" * 100_000)
        view = memoryview(mutable)
        transport.write(view)
        view.release()
        mutable[:] = b"B" * 100_000
        assert_same((await recv_exactly(peer, sent + 100_000))[sent:], b"A" * 100_000)


async def test_write_eof_comes_after_the_data(kind):
    async with link(kind) as (transport, protocol, peer):
        sent = fill(transport)
        transport.write_eof()
        assert not transport.is_closing()
        transport.write_eof()                       # idempotent
        assert len(await recv_to_end(peer)) == sent
        peer.send(b"reply")
        await protocol.received(5)
        assert protocol.data == b"reply"


async def test_write_after_write_eof(kind):
    async with link(kind) as (transport, _, peer):
        transport.write(b"before")
        transport.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            transport.write(b"after")
        assert await recv_to_end(peer) == b"before"


async def test_writelines_after_write_eof(kind):
    async with link(kind) as (transport, _, peer):
        transport.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            transport.writelines([b"after"])
        assert await recv_to_end(peer) == b""


async def test_close_flushes(kind):
    async with link(kind) as (transport, protocol, peer):
        sent = fill(transport)
        transport.write(b"end")
        transport.close()
        await settle()
        assert "connection_lost" not in protocol.calls      # it has bytes to send yet
        received = await recv_to_end(peer)
        assert len(received) == sent + 3
        assert received.endswith(b"end")
        await protocol.called("connection_lost")
        assert protocol.exc is None


async def test_abort_drops_what_is_queued(kind):
    async with link(kind) as (transport, protocol, peer):
        sent = fill(transport)
        transport.write(b"z" * 10_000_000)
        transport.abort()
        assert transport.is_closing()
        await protocol.called("connection_lost")
        assert protocol.exc is None
        assert transport.get_write_buffer_size() == 0
        try:
            assert len(await recv_to_end(peer)) < sent + 10_000_000
        except ConnectionResetError:
            assert kind.startswith("tcp")


async def test_close_then_abort(kind):
    async with link(kind) as (transport, protocol, _):
        fill(transport)
        transport.close()
        await settle()
        assert "connection_lost" not in protocol.calls
        transport.abort()
        await protocol.called("connection_lost")
        assert protocol.calls.count("connection_lost") == 1


@known_gap("uvloop", "raises RuntimeError once the handle is closed")
async def test_write_after_close_is_dropped(kind):
    async with link(kind) as (transport, protocol, peer):
        transport.write(b"before")
        transport.close()
        await protocol.called("connection_lost")
        transport.write(b"after")
        assert transport.get_write_buffer_size() == 0
        assert await recv_to_end(peer) == b"before"


@known_gap("asyncio", "3.12.0 to 3.13.0 raise TypeError",
           when=(3, 12) <= sys.version_info < (3, 13, 1))
@known_gap("uvloop", "raises RuntimeError once the handle is closed")
async def test_writelines_after_close_is_dropped(kind):
    async with link(kind) as (transport, protocol, peer):
        transport.close()
        await protocol.called("connection_lost")
        transport.writelines([b"after"])
        assert transport.get_write_buffer_size() == 0
        assert await recv_to_end(peer) == b""


async def test_write_and_close_in_data_received(kind):
    def hook(protocol, name):
        if name == "data_received":
            protocol.transport.write(bytes(protocol.data).upper())
            protocol.transport.close()
    async with link(kind, lambda: RecordingProtocol(hook=hook)) as (_, protocol, peer):
        peer.send(b"hello")
        assert await recv_to_end(peer) == b"HELLO"
        await protocol.called("connection_lost")


async def test_write_in_connection_made(kind):
    def hook(protocol, name):
        if name == "connection_made":
            protocol.transport.write(b"220 ready")
    async with link(kind, lambda: RecordingProtocol(hook=hook)) as (_, _, peer):
        assert await recv_exactly(peer, 9) == b"220 ready"


async def test_large_transfer_both_ways(kind):
    """Neither direction starves the other, and nothing is lost under back-pressure."""
    def hook(protocol, name):
        if name == "data_received":
            protocol.transport.write(bytes(protocol.data[protocol.sent:]))
            protocol.sent = len(protocol.data)

    def make():
        protocol = RecordingProtocol(hook=hook)
        protocol.sent = 0
        return protocol
    data = pattern(8_000_000)
    async with link(kind, make) as (_, _, peer):
        sender = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(peer, data))
        assert_same(await recv_exactly(peer, len(data)), data)
        await sender


@known_gap("uvloop", "raises RuntimeError once the handle is closed")
async def test_writes_to_a_vanished_peer_are_warned_about_at_last(kind, caplog):
    """After the connection is lost writes are dropped; from the sixth on a warning is logged."""
    async with link(kind) as (transport, protocol, peer):
        reset(peer) if kind.startswith("tcp") else peer.close()
        while not transport.is_closing():
            transport.write(b"x")
            await asyncio.sleep(0)
        await protocol.called("connection_lost")
        assert protocol.exc is None or isinstance(protocol.exc, OSError)
        for _ in range(10):
            transport.write(b"x")
    assert {r.getMessage() for r in caplog.records} == {"socket.send() raised exception."}
    assert {r.name for r in caplog.records} == {"asyncio"}
