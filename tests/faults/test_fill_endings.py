"""A large readexactly() that waits, and everything that can end it or cut in.

Such a read may be filled by the loop in place. Whatever happens to the connection or to the
task, it must look as if what had arrived was in the reader's buffer, as with asyncio's.
"""
import asyncio
import contextlib
import fcntl
import gc
import os
import socket
import struct
import termios
import warnings

import pytest
from support import (
    FACTORIES,
    assert_same,
    known_gap,
    listener,
    pattern,
    recv_exactly,
    reset,
    settle,
)

SIZE = 200_000
DATA = pattern(SIZE)

gots = pytest.mark.parametrize("got", [0, 1000, 40_000, 150_000])  # arrived when it ends
kinds = pytest.mark.parametrize("kind", ["tcp", "unix"])


async def send(peer, data):
    await asyncio.get_running_loop().sock_sendall(peer, data)


def pair(kind):
    """(own socket, peer)."""
    if kind == "unix":
        own, peer = socket.socketpair()
    else:
        with listener() as listening:
            own = socket.create_connection(listening.getsockname())
            peer, _ = listening.accept()
    peer.setblocking(False)
    return own, peer


@contextlib.asynccontextmanager
async def reading(kind, got=0):
    """(task in readexactly(SIZE), reader, writer, peer), when `got` bytes have arrived."""
    own, peer = pair(kind)
    reader, writer = await asyncio.open_connection(sock=own)
    protocol = writer.transport.get_protocol()
    task = asyncio.ensure_future(reader.readexactly(SIZE))
    await settle()
    await send(peer, DATA[:got])
    await settle()
    with peer:
        try:
            yield task, reader, writer, peer
        finally:
            if not task.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            last = writer.transport.get_protocol()
            writer.transport.abort()
            if last in (protocol, None):
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            else:
                await last.called("connection_lost")
            await settle()


async def partial(task):
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await task
    assert caught.value.expected == SIZE
    return caught.value.partial


# -- the connection ends ----------------------------------------------------------------------

def peer_closes(writer, peer):
    peer.close()


def peer_half_closes(writer, peer):
    peer.shutdown(socket.SHUT_WR)


def close(writer, peer):
    writer.close()


def abort(writer, peer):
    writer.transport.abort()


def close_after_eof(writer, peer):
    peer.shutdown(socket.SHUT_WR)
    writer.close()


@kinds
@gots
@pytest.mark.parametrize("end", [peer_closes, peer_half_closes, close, abort, close_after_eof])
async def test_orderly_end(kind, got, end):
    """IncompleteReadError with all that had come, then the end of the stream."""
    async with reading(kind, got) as (task, reader, writer, peer):
        end(writer, peer)
        assert_same(await partial(task), DATA[:got])
        assert await reader.read() == b""
        assert reader.at_eof()
        assert reader.exception() is None


@gots
@pytest.mark.parametrize("more", [0, 500])
async def test_reset(got, more):
    """It is an error for this read and all later ones, not an end of the stream."""
    async with reading("tcp", got) as (task, reader, writer, peer):
        if more:
            peer.send(DATA[got:got + more])
        reset(peer)
        with pytest.raises(ConnectionResetError):
            await task
        with pytest.raises(ConnectionResetError):
            await reader.read(10)
        assert isinstance(reader.exception(), ConnectionResetError)
        writer.close()
        with pytest.raises(ConnectionResetError):
            await writer.wait_closed()


@gots
async def test_reset_that_a_write_meets_first(got):
    async with reading("tcp", got) as (task, reader, writer, peer):
        reset(peer)
        for _ in range(3):
            writer.write(b"x")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await task
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await reader.read(10)


@kinds
@gots
async def test_our_half_close_does_not_end_it(kind, got):
    async with reading(kind, got) as (task, _, writer, peer):
        writer.write(b"the end")
        writer.write_eof()
        assert await recv_exactly(peer, 7) == b"the end"
        await send(peer, DATA[got:])
        assert_same(await task, DATA)


# -- the task ends ----------------------------------------------------------------------------

@kinds
@gots
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_task_ends(kind, got, how):
    """What had come is what the next read gets."""
    async with reading(kind) as (task, reader, _, peer):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        limit = asyncio.timeout(None)

        async def read():
            async with limit:
                await reader.readexactly(SIZE)
        task = asyncio.ensure_future(read())
        await settle()
        await send(peer, DATA[:got])
        await settle()
        if how == "cancelled":
            task.cancel()
        else:
            limit.reschedule(asyncio.get_running_loop().time())
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else TimeoutError):
            await task
        await send(peer, DATA[got:])
        assert_same(await reader.readexactly(SIZE), DATA)


def cancel(task, reader, writer):
    task.cancel()


def close_writer(task, reader, writer):
    writer.close()


def abort_transport(task, reader, writer):
    writer.transport.abort()


def feed_eof(task, reader, writer):
    reader.feed_eof()


def look(task, reader, writer):
    repr(reader)
    reader.at_eof()
    reader.exception()


def look_inside(task, reader, writer):
    assert type(reader._buffer) is bytearray


STEPS = [cancel, close_writer, abort_transport, feed_eof, look, look_inside]


@kinds
@gots
@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("second", STEPS)
async def test_two_things_in_one_iteration(kind, got, first, second):
    """In whatever order: nothing is lost, nothing is logged, the task ends as it should."""
    steps = {first, second}
    async with reading(kind, got) as (task, reader, writer, peer):
        first(task, reader, writer)
        second(task, reader, writer)
        if not steps & {close_writer, abort_transport, feed_eof}:
            await send(peer, DATA[got:])
            peer.shutdown(socket.SHUT_WR)
        if cancel in steps:
            with pytest.raises(asyncio.CancelledError):
                await task
            rest = await reader.read()
        elif steps & {close_writer, abort_transport, feed_eof}:
            rest = await partial(task)
        else:
            assert_same(await task, DATA)
            return
        assert_same(rest, DATA if steps <= {cancel, look, look_inside} else DATA[:got])
        assert reader.at_eof()


@kinds
@gots
@pytest.mark.parametrize("first", [close_writer, abort_transport])
async def test_read_in_the_iteration_that_closes(kind, got, first):
    """Another coroutine reads right after the close, before the protocol has heard of it."""
    async with reading(kind, got) as (task, reader, writer, _):
        first(task, reader, writer)
        task.cancel()
        again = asyncio.ensure_future(reader.readexactly(SIZE))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert_same(await partial(again), DATA[:got])


# -- somebody else gets the bytes -------------------------------------------------------------

@kinds
@gots
@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
async def test_change_of_protocol(kind, got, factory):
    """The reader keeps what it had; what comes from then on is the new protocol's."""
    second = factory()
    async with reading(kind, got) as (task, reader, writer, peer):
        writer.transport.set_protocol(second)
        await send(peer, DATA[got:])
        await second.received(SIZE - got)
        assert_same(second.data, DATA[got:])
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if got:
            assert_same(await reader.read(SIZE), DATA[:got])


@kinds
@gots
async def test_change_of_protocol_and_back(kind, got):
    async with reading(kind, got) as (task, _, writer, peer):
        protocol, second = writer.transport.get_protocol(), FACTORIES["protocol"]()
        writer.transport.set_protocol(second)
        writer.transport.set_protocol(protocol)
        await send(peer, DATA[got:])
        assert_same(await task, DATA)
        assert not second.data


@kinds
@gots
async def test_paused_by_hand(kind, got):
    async with reading(kind, got) as (task, _, writer, peer):
        writer.transport.pause_reading()
        sender = asyncio.ensure_future(send(peer, DATA[got:]))
        await settle()
        assert not task.done()
        writer.transport.resume_reading()
        assert_same(await task, DATA)
        await sender


@gots
async def test_started_where_bytes_are_about_to_be_delivered(got):
    """A read that starts inside another connection's callback, which its own bytes follow.

    Both are ready in one batch of the loop; a coroutine driven by hand starts at once, as an
    eager task does.
    """
    loop = asyncio.get_running_loop()
    own, peer = pair("tcp")
    reader, writer = await asyncio.open_connection(sock=own)
    results = []

    async def read():
        results.append(await reader.readexactly(SIZE))

    class Starter(asyncio.Protocol):
        def data_received(self, data):
            peer.setblocking(True)
            peer.send(DATA[1000:1000 + got])
            step()

    coroutine = read()

    def step(future=None):
        try:
            waiting = coroutine.send(None)
        except StopIteration:
            return
        if waiting is None:
            loop.call_soon(step)
        else:
            waiting._asyncio_future_blocking = False
            waiting.add_done_callback(step)
    left, right = socket.socketpair()
    transport, _ = await loop.create_connection(Starter, sock=left)
    await settle()
    right.send(b"x")
    peer.send(DATA[:1000])
    await settle()
    peer.setblocking(False)
    await send(peer, DATA[1000 + got:])
    await settle()
    while not results:
        await asyncio.sleep(0)
    assert_same(results[0], DATA)
    transport.abort()
    writer.close()
    await writer.wait_closed()
    right.close()
    peer.close()


# -- the loop ends ----------------------------------------------------------------------------

@kinds
@gots
def test_loop_stops_and_runs_again(loop_factory, kind, got):
    own, peer = pair(kind)
    with contextlib.closing(loop_factory()) as loop, peer:
        run = loop.run_until_complete
        reader, writer = run(asyncio.wait_for(asyncio.open_connection(sock=own), None))
        task = loop.create_task(reader.readexactly(SIZE))
        run(settle())
        run(send(peer, DATA[:got]))
        loop.call_soon(loop.stop)
        loop.run_forever()
        run(send(peer, DATA[got:]))
        assert_same(run(task), DATA)
        writer.close()
        run(writer.wait_closed())


@known_gap("uvloop", "closing the loop closes what is left open", run=False)
@kinds
@gots
@pytest.mark.parametrize("ready", [False, True])
def test_loop_closes_and_everything_is_deleted(loop_factory, kind, got, ready):
    """The transport warns and its descriptor is closed, also where bytes still wait for it."""
    before = set(os.listdir("/proc/self/fd"))
    own, peer = pair(kind)
    loop = loop_factory()
    run = loop.run_until_complete
    reader, writer = run(asyncio.wait_for(asyncio.open_connection(sock=own), None))
    task = loop.create_task(reader.readexactly(SIZE))
    run(settle())
    run(send(peer, DATA[:got]))
    if ready:
        run(settle())
        peer.send(DATA[:1000])
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        task._log_destroy_pending = False
        del task, reader, writer, own, run, loop
        gc.collect()
    peer.close()
    assert set(os.listdir("/proc/self/fd")) == before


# -- the program has paused reading ------------------------------------------------------------

def waiting(writer):
    """Bytes that are still in the kernel."""
    sock = writer.get_extra_info("socket")
    return struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))[0]


@kinds
@pytest.mark.parametrize("end", ["cancel", "timeout"])
async def test_cancelled_while_paused_receives_nothing(kind, end):
    """What came after the pause stays in the kernel, and holds the peer back there.

    What came before it was received, as it would have been without a fill.
    """
    async with reading(kind, 1000) as (task, reader, writer, peer):
        writer.transport.pause_reading()
        await settle()
        await send(peer, DATA[1000:60_000])
        await settle()
        if end == "timeout":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0)
        else:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await settle()
        assert waiting(writer) == 59_000
        writer.transport.resume_reading()
        await send(peer, DATA[60_000:])
        assert_same(await reader.readexactly(SIZE), DATA)


@kinds
async def test_closed_while_paused_receives_nothing(kind):
    async with reading(kind, 1000) as (task, _, writer, peer):
        writer.transport.pause_reading()
        await settle()
        await send(peer, DATA[1000:60_000])
        await settle()
        writer.transport.abort()
        assert len(await partial(task)) == 1000
