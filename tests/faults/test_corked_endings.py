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
    listener,
    pattern,
    recv_exactly,
    recv_to_end,
    settle,
)

ANSWER = pattern(16_000)        # the largest that is certainly corked whole
DATA_CALLS = ("data_received", "buffer_updated")
TAIL = b"tail"

kinds = pytest.mark.parametrize("kind", ["tcp", "unix"])
both = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)


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


rooms = pytest.mark.parametrize("room", ["ample", "little", "none"])


def connected(kind, room):
    """(own socket, peer, bytes that the peer reads first); `room` is the kernel's for writes.

    With "little" it takes a part of ANSWER, with "none" nothing until the peer reads.
    """
    if kind == "unix":
        own, peer = socket.socketpair()
        if room != "ample":
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    else:
        own = socket.socket()
        with listener() as listening:
            if room != "ample":         # before the connection: windows never shrink
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            own.connect(listening.getsockname())
            peer, _ = listening.accept()
    own.setblocking(False)
    peer.setblocking(False)
    before = 0
    if room == "none":
        with contextlib.suppress(BlockingIOError):
            while True:
                before += own.send(b"f" * 1000)
    return own, peer, before


@contextlib.asynccontextmanager
async def narrow_link(kind, room, factory=RecordingProtocol, go=b"go"):
    """(transport, protocol, peer), when the protocol has got `go` and the peer what was before."""
    own, peer, before = connected(kind, room)
    with peer:
        transport, protocol = await asyncio.get_running_loop().create_connection(factory, sock=own)
        if go:
            peer.send(go)
            await protocol.received(len(go))
        await recv_exactly(peer, before)
        yield transport, protocol, peer
    last = transport.get_protocol()
    if last is not None and "connection_lost" not in last.calls:
        transport.abort()
        await last.called("connection_lost")


def on_data(act):
    """A hook that calls act(transport, protocol) once, when the first two bytes have come."""
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
    async with narrow_link(kind, room, lambda: factory(hook=on_data(act))) as (
            transport, protocol, peer):
        if room != "ample":
            assert sizes[0] > 0         # else nothing is tested
        assert_same(await recv_to_end(peer), ANSWER)
        if end == "write_eof":
            assert not transport.is_closing()
            transport.close()
        await protocol.called("connection_lost")
        assert protocol.exc is None


@kinds
@rooms
async def test_end_of_two_in_one_callback(kind, room):
    """One connection is corked at a time: writing to the other lets go of the first."""
    own, other_peer, before = connected(kind, room)
    with other_peer:
        other, other_protocol = await asyncio.get_running_loop().create_connection(
            RecordingProtocol, sock=own)

        def act(transport, protocol):
            for each in transport, other, transport:
                each.write(ANSWER)
            transport.close()
            other.close()
        async with narrow_link(kind, room, lambda: RecordingProtocol(hook=on_data(act))) as (
                _, protocol, peer):
            assert_same(await recv_to_end(peer), ANSWER + ANSWER)
            assert_same((await recv_to_end(other_peer))[before:], ANSWER)
            await protocol.called("connection_lost")
            await other_protocol.called("connection_lost")


@kinds
@rooms
async def test_end_in_the_next_callback(kind, room):
    def act(transport, protocol):
        asyncio.get_running_loop().call_soon(transport.close)
        transport.write(ANSWER)
    async with narrow_link(kind, room, lambda: RecordingProtocol(hook=on_data(act))) as (
            _, protocol, peer):
        assert_same(await recv_to_end(peer), ANSWER)
        await protocol.called("connection_lost")


@kinds
@both
@rooms
async def test_end_of_eof_received(kind, factory, room):
    """It returns None, which closes the connection."""
    def hook(protocol, name):
        if name == "eof_received":
            protocol.transport.write(ANSWER)
    async with narrow_link(kind, room, lambda: factory(hook=hook)) as (_, protocol, peer):
        peer.shutdown(socket.SHUT_WR)
        assert_same(await recv_to_end(peer), ANSWER)
        await protocol.called("connection_lost")
        assert protocol.exc is None


@known_gap("uvloop", "leaves the socket that it was given unclosed", run=False)
@kinds
@rooms
async def test_end_in_connection_made(kind, room):
    def hook(protocol, name):
        if name == "connection_made":
            protocol.transport.write(ANSWER)
            protocol.transport.close()
    async with narrow_link(kind, room, lambda: RecordingProtocol(hook=hook), go=b"") as (
            _, protocol, peer):
        assert_same(await recv_to_end(peer), ANSWER)
        await protocol.called("connection_lost")


@kinds
async def test_abort(kind):
    """asyncio has given the bytes to the kernel when abort() is called, and the peer gets them."""
    def act(transport, protocol):
        transport.write(ANSWER)
        transport.abort()
    async with narrow_link(kind, "ample", lambda: RecordingProtocol(hook=on_data(act))) as (
            _, protocol, peer):
        await protocol.called("connection_lost")
        assert_same(await recv_to_end(peer), ANSWER)
        assert protocol.exc is None


@kinds
@rooms
async def test_abort_drops_what_the_kernel_has_no_room_for(kind, room):
    """The peer gets a beginning of the answer at most, and connection_lost comes once."""
    def act(transport, protocol):
        transport.write(ANSWER)
        transport.abort()
    async with narrow_link(kind, room, lambda: RecordingProtocol(hook=on_data(act))) as (
            _, protocol, peer):
        await protocol.called("connection_lost")
        assert ANSWER.startswith(await recv_to_end(peer))
        await settle()
        assert protocol.calls.count("connection_lost") == 1
        assert protocol.exc is None


def shut_down(sock):
    sock.shutdown(socket.SHUT_WR)


def shut_down_by_number(sock):
    with socket.fromfd(sock.fileno(), sock.family, sock.type) as own:
        own.send(TAIL)
        own.shutdown(socket.SHUT_WR)


def write_by_number(sock):
    os.write(sock.fileno(), TAIL)


def send_on_duplicate(sock):
    with sock.dup() as own:
        own.send(TAIL)


@kinds
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("use", [
    pytest.param(shut_down, marks=known_gap("uvloop", "its socket object refuses to")),
    shut_down_by_number, write_by_number, send_on_duplicate])
async def test_use_of_the_socket(kind, use, early):
    """What goes past the transport comes after its own. The socket may be an old acquaintance."""
    def act(transport, protocol):
        sock = early and transport.get_extra_info("socket")
        transport.write(ANSWER)
        use(sock or transport.get_extra_info("socket"))
    async with narrow_link(kind, "ample", lambda: RecordingProtocol(hook=on_data(act))) as (
            transport, _, peer):
        expected = ANSWER if use is shut_down else ANSWER + TAIL
        assert_same(await recv_exactly(peer, len(expected)), expected)
        transport.close()
        assert await recv_to_end(peer) == b""


@kinds
@rooms
@both
async def test_change_of_protocol(kind, room, factory):
    """What was written before comes before what is written after."""
    second = factory()

    def act(transport, protocol):
        transport.write(ANSWER)
        transport.set_protocol(second)
        second.connection_made(transport)
        transport.write(TAIL)
        transport.close()
    async with narrow_link(kind, room, lambda: RecordingProtocol(hook=on_data(act))) as (
            _, protocol, peer):
        assert_same(await recv_to_end(peer), ANSWER + TAIL)
        await second.called("connection_lost")
        assert "connection_lost" not in protocol.calls


@kinds
@rooms
@known_gap("uvloop", "sendfile is not implemented", run=False)
async def test_start_of_sendfile(kind, room, tmp_path):
    content = pattern(100_000, 7)
    (tmp_path / "file").write_bytes(content)
    tasks = []

    def act(transport, protocol):
        transport.write(ANSWER)
        tasks.append(asyncio.ensure_future(
            asyncio.get_running_loop().sendfile(transport, file)))
    with (tmp_path / "file").open("rb") as file:
        async with narrow_link(kind, room, lambda: RecordingProtocol(hook=on_data(act))) as (
                _, _, peer):
            expected = ANSWER + content
            assert_same(await recv_exactly(peer, len(expected)), expected)
            assert await tasks[0] == len(content)


@kinds
@both
async def test_exception(kind, factory, loop_errors):
    """A failing callback costs the connection, not what it had written before."""
    def act(transport, protocol):
        transport.write(ANSWER)
        raise ZeroDivisionError
    async with narrow_link(kind, "ample", lambda: factory(hook=on_data(act))) as (
            _, protocol, peer):
        await protocol.called("connection_lost")
        assert isinstance(loop_errors.pop()["exception"], ZeroDivisionError)
        assert isinstance(protocol.exc, ZeroDivisionError)
        assert_same(await recv_to_end(peer), ANSWER)


def stop(transport):
    transport.write(ANSWER)
    asyncio.get_running_loop().stop()


def interrupt(transport):
    transport.write(ANSWER)
    raise KeyboardInterrupt


def leave(transport):
    transport.write(ANSWER)
    raise SystemExit


ENDS = {stop: None, interrupt: KeyboardInterrupt, leave: SystemExit}


@kinds
@both
@rooms
@pytest.mark.parametrize("halt", [stop, *(pytest.param(halt, marks=known_gap(
    "uvloop", "takes no note of what is raised", run=False)) for halt in (interrupt, leave))])
def test_loop_ends(loop_factory, kind, factory, room, halt):
    """What the kernel takes is on its way when run_forever ends; the rest when it runs again."""
    own, peer, before = connected(kind, room)
    with peer, contextlib.closing(loop_factory()) as loop:
        _, protocol = loop.run_until_complete(loop.create_connection(
            lambda: factory(hook=on_data(lambda transport, _: halt(transport))), sock=own))
        peer.send(b"go")
        with pytest.raises(ENDS[halt]) if ENDS[halt] else contextlib.nullcontext():
            loop.run_forever()
        if room == "ample":             # all of it is there, with the loop at rest
            assert_same(peer.recv(len(ANSWER) + 1), ANSWER)
        else:
            loop.run_until_complete(recv_exactly(peer, before))
            assert_same(loop.run_until_complete(recv_exactly(peer, len(ANSWER))), ANSWER)
        peer.send(b"again")             # and the connection lives on
        loop.run_until_complete(protocol.received(7))
        protocol.transport.close()
        loop.run_until_complete(protocol.called("connection_lost"))
        loop.run_until_complete(settle())
