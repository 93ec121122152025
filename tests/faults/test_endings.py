"""Connections that end while something waits for them: sendfile, stashed bytes, a TLS upgrade."""
import asyncio
import contextlib
import socket
import ssl

import pytest
from support import (
    FACTORIES,
    RecordingProtocol,
    assert_same,
    fill,
    known_gap,
    link,
    pattern,
    recv_exactly,
    recv_to_end,
    reset,
    settle,
)

kinds = pytest.mark.parametrize("kind", ["tcp-client", "unix-server"])
both = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)


# -- sendfile ---------------------------------------------------------------------------------

@pytest.fixture
def large(tmp_path):
    """A sparse file, larger than what socket buffers take."""
    with (tmp_path / "large").open("w+b") as file:
        file.truncate(100_000_000)
        yield file


def queued(transport):
    """sendfile waits for what was written before."""
    fill(transport)


def idle(transport):
    """sendfile is at work at once."""


def abort(transport, peer):
    transport.abort()


def close_and_abort(transport, peer):
    transport.close()
    transport.abort()


def peer_closes(transport, peer):
    peer.close()


@known_gap("uvloop", "sendfile is not implemented", run=False)
@kinds
@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("before", [queued, pytest.param(idle, marks=known_gap(
    "asyncio", "sendfile under way is forgotten by abort()", run=False))])
@pytest.mark.parametrize("end", [abort, close_and_abort, pytest.param(
    peer_closes, marks=known_gap("asyncio", "sets its waiter's exception twice", run=False))])
async def test_sendfile_ends_with_its_connection(kind, before, fallback, end, large):
    async with link(kind) as (transport, protocol, peer):
        before(transport)
        task = asyncio.ensure_future(
            asyncio.get_running_loop().sendfile(transport, large, fallback=fallback))
        await settle()
        end(transport, peer)
        with pytest.raises(ConnectionError):
            await task
        await protocol.called("connection_lost")
        assert protocol.calls.count("connection_lost") == 1


@known_gap("uvloop", "sendfile is not implemented", run=False)
@known_gap("asyncio", "sets its waiter's exception twice, or loses the error")
@pytest.mark.parametrize("before", [queued, idle])
async def test_sendfile_ends_with_a_reset(before, large):
    async with link("tcp-client") as (transport, protocol, peer):
        before(transport)
        task = asyncio.ensure_future(asyncio.get_running_loop().sendfile(transport, large))
        await settle()
        reset(peer)
        with pytest.raises(ConnectionError):
            await task
        await protocol.called("connection_lost")
        assert isinstance(protocol.exc, ConnectionError)


@known_gap("uvloop", "sendfile is not implemented", run=False)
@known_gap("asyncio", "refuses every write after a sendfile that was cancelled while it waited")
@kinds
async def test_cancelled_sendfile_that_waits(kind, large):
    """The connection lives on: what was queued arrives, and so does what is written later."""
    async with link(kind) as (transport, protocol, peer):
        sent = fill(transport)
        task = asyncio.ensure_future(asyncio.get_running_loop().sendfile(transport, large))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        transport.write(b"end")
        transport.close()
        assert_same(await recv_to_end(peer), b"f" * sent + b"end")
        await protocol.called("connection_lost")
        assert protocol.exc is None


# -- exceptions that leave the loop -----------------------------------------------------------

class Once:
    """A hook that raises `exc` at the first call of a data callback that finds `size` bytes."""

    def __init__(self, exc, size):
        self.exc, self.size = exc, size

    def __call__(self, protocol, name):
        if name in ("data_received", "buffer_updated") and len(protocol.data) == self.size:
            exc, self.exc = self.exc, None
            if exc is not None:
                raise exc


@known_gap("uvloop", "takes no note of what is raised", run=False)
@kinds
@both
@pytest.mark.parametrize("exc", [KeyboardInterrupt, SystemExit])
def test_interrupt_while_stashed_bytes_are_delivered(loop_factory, kind, factory, exc):
    """Two connections ready at once; the first pauses the second, whose bytes wait somewhere."""
    protocols = []

    def pause_other(protocol, name):
        if name in ("data_received", "buffer_updated"):
            other = protocols[1 - protocols.index(protocol)]
            if len(protocol.data) == 1 and not other.data:
                other.transport.pause_reading()
                asyncio.get_running_loop().call_soon(other.transport.resume_reading)
            elif len(protocol.data) == 1:
                raise exc
    stack = contextlib.AsyncExitStack()
    with contextlib.closing(loop_factory()) as loop:
        run = loop.run_until_complete
        peers = []
        for _ in range(2):
            _, protocol, peer = run(stack.enter_async_context(
                link(kind, lambda: factory(hook=pause_other))))
            protocols.append(protocol)
            peers.append(peer)
        for peer in peers:
            peer.send(b"1")
        with pytest.raises(exc):
            loop.run_forever()
        for peer in peers:
            peer.send(b"2")
        for protocol in protocols:
            run(protocol.received(2))
            assert protocol.data == b"12"
        run(settle())
        run(stack.aclose())


@known_gap("uvloop", "takes no note of what is raised", run=False)
@kinds
@both
@pytest.mark.parametrize("exc", [KeyboardInterrupt, SystemExit])
def test_interrupt_while_many_are_ready(loop_factory, kind, factory, exc):
    """One callback of a batch raises; each connection gets its bytes all the same."""
    stack = contextlib.AsyncExitStack()
    with contextlib.closing(loop_factory()) as loop:
        run = loop.run_until_complete
        hook = Once(exc, 1)
        links = [run(stack.enter_async_context(link(kind, lambda: factory(hook=hook))))
                 for _ in range(5)]
        for _, _, peer in links:
            peer.send(b"1")
        with pytest.raises(exc):
            loop.run_forever()
        for _, protocol, peer in links:
            peer.send(b"2")
            run(protocol.received(2))
            assert protocol.data == b"12"
        run(settle())
        run(stack.aclose())


# -- after the end of the stream --------------------------------------------------------------

@kinds
@both
async def test_half_open_connection_asks_for_no_buffer(kind, factory):
    """After eof_received nothing is read, however often the socket becomes writable."""
    async with link(kind, lambda: factory(eof_result=True)) as (transport, protocol, peer):
        peer.shutdown(socket.SHUT_WR)
        await protocol.called("eof_received")
        asked = len(getattr(protocol, "hints", ()))
        for _ in range(3):
            await recv_exactly(peer, fill(transport))
            await settle()
        assert len(getattr(protocol, "hints", ())) == asked
        assert protocol.calls.count("eof_received") == 1
        assert not protocol.data


# -- TLS in the middle of a read --------------------------------------------------------------

@pytest.mark.parametrize("size", [1000, 200_000])
async def test_start_tls_while_a_reader_waits(contexts, size):
    """A task waits in readexactly() when another upgrades: it gets what comes through TLS."""
    server_context, client_context = contexts
    data = pattern(size)
    upgrading, served = (asyncio.get_running_loop().create_future() for _ in range(2))

    async def serve(reader, writer):
        assert await reader.readline() == b"STARTTLS\n"
        upgrading.set_result(None)
        await writer.start_tls(server_context)
        writer.write(data)
        await writer.drain()
        served.set_result(writer)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    task = asyncio.ensure_future(reader.readexactly(size))
    await settle()
    writer.write(b"STARTTLS\n")
    await upgrading
    await writer.start_tls(client_context, server_hostname="localhost")
    assert_same(await task, data)
    for each in writer, await served:
        each.transport.abort()
        with contextlib.suppress(OSError):
            await each.wait_closed()
    server.close()
    await server.wait_closed()
    await settle()


@kinds
async def test_tls_handshake_right_after_a_corked_write(kind, contexts):
    """The answer "go ahead" leaves in the clear, before the first record."""
    tasks = []

    def hook(protocol, name):
        if name == "data_received" and protocol.data == b"STARTTLS\n":
            protocol.transport.write(b"go ahead\n")
            tasks.append(asyncio.ensure_future(asyncio.get_running_loop().start_tls(
                protocol.transport, protocol, contexts[0], server_side=True)))
    async with link(kind, lambda: RecordingProtocol(hook=hook)) as (_, protocol, peer):
        peer.send(b"STARTTLS\n")
        assert await recv_exactly(peer, 9) == b"go ahead\n"
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = contexts[1].wrap_bio(incoming, outgoing, server_hostname="localhost")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                if outgoing.pending:
                    peer.send(outgoing.read())
                incoming.write(await asyncio.get_running_loop().sock_recv(peer, 65536))
        peer.send(outgoing.read())
        transport = await tasks[0]
        transport.abort()
        await protocol.called("connection_lost")
        await settle()
