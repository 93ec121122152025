"""Small writes in a callback, and what ends that callback: the peer gets every byte, once.

Bytes that a callback writes may be held back until it returns (corked), so that they leave in
one segment. Whatever the callback does next must come after them: close the connection, use
the descriptor, raise, stop the loop.
"""
import asyncio
import contextlib
import os
import socket

import pytest
from support import (
    FACTORIES,
    RecordingProtocol,
    assert_same,
    known_gap,
    link,
    pattern,
    recv_exactly,
    recv_to_end,
    settle,
)

ANSWER = pattern(16_000)        # the largest that is certainly corked whole
DATA_CALLS = ("data_received", "buffer_updated")
TAIL = b"tail"

kinds = pytest.mark.parametrize("kind", ["tcp-client", "tcp-server", "unix-client"])
both = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
late_writes = known_gap("uvloop", "writes reach the kernel only at the end of the iteration")


def write_once(transport):
    transport.write(ANSWER)


def write_pieces(transport):
    for n in range(0, len(ANSWER), 1000):
        transport.write(ANSWER[n:n + 1000])


def write_mixed(transport):
    """A corked write, one that is too large to be, and a vector of small pieces."""
    transport.write(ANSWER[:100])
    transport.write(bytearray(ANSWER[100:9000]))
    transport.writelines([ANSWER[9000:9010], ANSWER[9010:]])


writes = pytest.mark.parametrize("write", [write_once, write_pieces, write_mixed])


def untouched(transport):
    """The kernel has room for everything."""
    return 0


def small_buffer(transport):
    """The kernel takes a part of ANSWER only."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    return 0


def full_buffer(transport):
    """The kernel takes nothing. Returns how many bytes the peer reads before the answer."""
    sock = small_buffer(transport) or transport.get_extra_info("socket")
    total = 0
    with socket.fromfd(sock.fileno(), sock.family, sock.type) as own:
        with contextlib.suppress(BlockingIOError):
            while True:
                total += own.send(b"f" * 4096, socket.MSG_DONTWAIT)
    return total


rooms = pytest.mark.parametrize("room", [untouched, small_buffer, full_buffer])


def on_data(act):
    """A hook that calls act(transport, protocol) once, when the first bytes come."""
    def hook(protocol, name):
        if name in DATA_CALLS and len(protocol.data) == 2:
            act(protocol.transport, protocol)
    return hook


@kinds
@both
@rooms
@writes
@pytest.mark.parametrize("end", ["close", "write_eof"])
async def test_orderly_end(kind, factory, room, write, end):
    """Everything, then the end of the stream: also where the kernel lacks room for it."""
    sizes = []

    def act(transport, protocol):
        write(transport)
        getattr(transport, end)()
        sizes.append(transport.get_write_buffer_size())
    async with link(kind, lambda: factory(hook=on_data(act))) as (transport, protocol, peer):
        before = room(transport)
        peer.send(b"go")
        await protocol.received(2)
        if room is not untouched:
            assert sizes[0] > 0         # else this test tests nothing
        await recv_exactly(peer, before)
        assert_same(await recv_to_end(peer), ANSWER)
        if end == "write_eof":
            assert not transport.is_closing()
            transport.close()
        await protocol.called("connection_lost")
        assert protocol.exc is None


@kinds
@rooms
async def test_end_in_another_connections_callback(kind, room):
    """One connection is corked at a time: writing to the other lets go of the first."""
    async with link(kind) as (other, other_protocol, other_peer):
        def act(transport, protocol):
            transport.write(ANSWER)
            other.write(ANSWER)
            transport.close()
            other.close()
        async with link(kind, lambda: RecordingProtocol(hook=on_data(act))) as (
                transport, protocol, peer):
            before, other_before = room(transport), room(other)
            peer.send(b"go")
            await protocol.received(2)
            await recv_exactly(peer, before)
            await recv_exactly(other_peer, other_before)
            assert_same(await recv_to_end(peer), ANSWER)
            assert_same(await recv_to_end(other_peer), ANSWER)
            await protocol.called("connection_lost")
            await other_protocol.called("connection_lost")


@kinds
@rooms
async def test_end_in_the_iteration_after(kind, room):
    """close() from a callback that the loop runs next."""
    def act(transport, protocol):
        asyncio.get_running_loop().call_soon(transport.close)
        transport.write(ANSWER)
    async with link(kind, lambda: RecordingProtocol(hook=on_data(act))) as (
            transport, protocol, peer):
        before = room(transport)
        peer.send(b"go")
        await protocol.received(2)
        await recv_exactly(peer, before)
        assert_same(await recv_to_end(peer), ANSWER)
        await protocol.called("connection_lost")


@kinds
@both
@rooms
@pytest.mark.parametrize("name", ["connection_made", "eof_received"])
async def test_end_of_other_callbacks(kind, factory, room, name):
    """eof_received that returns None closes; connection_made closes by hand."""
    before = 0

    def hook(protocol, called):
        nonlocal before
        if called == name:
            before = room(protocol.transport)
            protocol.transport.write(ANSWER)
            if name == "connection_made":
                protocol.transport.close()
    async with link(kind, lambda: factory(hook=hook)) as (_, protocol, peer):
        if name == "eof_received":
            peer.shutdown(socket.SHUT_WR)
            await protocol.called(name)
        await recv_exactly(peer, before)
        assert_same(await recv_to_end(peer), ANSWER)
        await protocol.called("connection_lost")
        assert protocol.exc is None


@kinds
@late_writes
async def test_abort(kind):
    """asyncio has given the bytes to the kernel before abort() is called, and the peer gets them."""
    def act(transport, protocol):
        transport.write(ANSWER)
        transport.abort()
    async with link(kind, lambda: RecordingProtocol(hook=on_data(act))) as (_, protocol, peer):
        peer.send(b"go")
        await protocol.called("connection_lost")
        assert_same(await recv_to_end(peer), ANSWER)
        assert protocol.exc is None


@kinds
@rooms
async def test_abort_drops_what_the_kernel_has_no_room_for(kind, room):
    """What the peer gets is a beginning of the answer, and connection_lost comes once."""
    def act(transport, protocol):
        transport.write(ANSWER)
        transport.abort()
        assert transport.get_write_buffer_size() == 0
    async with link(kind, lambda: RecordingProtocol(hook=on_data(act))) as (_, protocol, peer):
        before = room(protocol.transport)
        peer.send(b"go")
        await protocol.called("connection_lost")
        got = (await recv_to_end(peer))[before:]
        assert ANSWER.startswith(got)
        await settle()
        assert protocol.calls.count("connection_lost") == 1


@kinds
@known_gap("uvloop", "its socket object has no shutdown()")
async def test_shutdown_of_the_socket(kind):
    def act(transport, protocol):
        transport.write(ANSWER)
        transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
    async with link(kind, lambda: RecordingProtocol(hook=on_data(act))) as (_, protocol, peer):
        peer.send(b"go")
        await protocol.received(2)
        assert_same(await recv_to_end(peer), ANSWER)


def shutdown_by_number(sock):
    with socket.fromfd(sock.fileno(), sock.family, sock.type) as own:
        own.send(TAIL)
        own.shutdown(socket.SHUT_WR)


def write_by_number(sock):
    os.write(sock.fileno(), TAIL)


def send_on_duplicate(sock):
    with sock.dup() as own:
        own.send(TAIL)


@kinds
@late_writes
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("use", [shutdown_by_number, write_by_number, send_on_duplicate])
async def test_use_of_the_descriptor(kind, use, early):
    """Bytes that go past the transport come after its own. The socket may be an old acquaintance."""
    def act(transport, protocol):
        if early:
            sock = transport.get_extra_info("socket")
        transport.write(ANSWER)
        use(sock if early else transport.get_extra_info("socket"))
    async with link(kind, lambda: RecordingProtocol(hook=on_data(act))) as (
            transport, protocol, peer):
        peer.send(b"go")
        await protocol.received(2)
        assert_same(await recv_exactly(peer, len(ANSWER + TAIL)), ANSWER + TAIL)


@kinds
@rooms
@both
async def test_change_of_protocol(kind, room, factory):
    """The new protocol inherits what waits; its writes come after it."""
    second = factory()

    def act(transport, protocol):
        transport.write(ANSWER)
        transport.set_protocol(second)
        second.connection_made(transport)
        transport.write(TAIL)
        transport.close()
    async with link(kind, lambda: RecordingProtocol(hook=on_data(act))) as (
            transport, protocol, peer):
        before = room(transport)
        peer.send(b"go")
        await protocol.received(2)
        await recv_exactly(peer, before)
        assert_same(await recv_to_end(peer), ANSWER + TAIL)
        await second.called("connection_lost")
        assert "connection_lost" not in protocol.calls


@kinds
@rooms
@known_gap("uvloop", "sendfile is not implemented", run=False)
async def test_start_of_sendfile(kind, room, tmp_path):
    (tmp_path / "file").write_bytes(pattern(200_000, 7))
    tasks = []

    def act(transport, protocol):
        transport.write(ANSWER)
        tasks.append(asyncio.ensure_future(
            asyncio.get_running_loop().sendfile(transport, file)))
    with (tmp_path / "file").open("rb") as file:
        async with link(kind, lambda: RecordingProtocol(hook=on_data(act))) as (
                transport, protocol, peer):
            before = room(transport)
            peer.send(b"go")
            await protocol.received(2)
            await recv_exactly(peer, before)
            assert_same(await recv_exactly(peer, len(ANSWER) + 200_000),
                        ANSWER + pattern(200_000, 7))
            assert await tasks[0] == 200_000


@kinds
@both
@late_writes
async def test_exception(kind, factory, loop_errors):
    """A failing callback costs the connection, not what it had written before."""
    def act(transport, protocol):
        transport.write(ANSWER)
        raise ZeroDivisionError
    async with link(kind, lambda: factory(hook=on_data(act))) as (_, protocol, peer):
        peer.send(b"go")
        await protocol.called("connection_lost")
        assert isinstance(loop_errors.pop()["exception"], ZeroDivisionError)
        assert isinstance(protocol.exc, ZeroDivisionError)
        assert_same(await recv_to_end(peer), ANSWER)


@contextlib.contextmanager
def link_between_runs(loop, *args):
    """link() for tests that run the loop several times: (transport, protocol, peer)."""
    stack = contextlib.AsyncExitStack()
    try:
        yield loop.run_until_complete(stack.enter_async_context(link(*args)))
    finally:
        loop.run_until_complete(stack.aclose())


def stop(transport):
    transport.write(ANSWER)
    asyncio.get_running_loop().stop()


def interrupt(transport):
    transport.write(ANSWER)
    raise KeyboardInterrupt


def leave(transport):
    transport.write(ANSWER)
    raise SystemExit


@kinds
@both
@rooms
@pytest.mark.parametrize("halt", [stop, interrupt, leave])
def test_loop_ends(loop_factory, kind, factory, room, halt):
    """What the kernel takes is on its way when run_forever ends; the rest when it runs again."""
    def act(transport, protocol):
        halt(transport)
    with contextlib.closing(loop_factory()) as loop, link_between_runs(
            loop, kind, lambda: factory(hook=on_data(act))) as (transport, protocol, peer):
        before = room(transport)
        peer.send(b"go")
        expected = {stop: None, interrupt: KeyboardInterrupt, leave: SystemExit}[halt]
        with pytest.raises(expected) if expected else contextlib.nullcontext():
            loop.run_forever()
        if room is untouched:
            peer.setblocking(True)
            assert_same(peer.recv(len(ANSWER), socket.MSG_WAITALL), ANSWER)
            peer.setblocking(False)
        else:
            loop.run_until_complete(recv_exactly(peer, before))
            assert_same(loop.run_until_complete(recv_exactly(peer, len(ANSWER))), ANSWER)
        peer.send(b"again")             # and the connection lives on
        loop.run_until_complete(protocol.received(7))
        loop.run_until_complete(settle())
