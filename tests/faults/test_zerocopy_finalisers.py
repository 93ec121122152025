"""Buffers whose end runs code: a finaliser may do to the connection what it likes.

Wherever zcloop lets go of a buffer, and between any two steps of sending the queue.
"""
import asyncio
import contextlib
import select
import socket

import pytest
from flight_tools import DATA, in_flight_now, linked, read_all, run
from support import assert_same, poll, reset

import zcloop
from zcloop.send_queue import SendQueue


class Telling(bytearray):
    """Calls `told` when it is freed."""

    told = staticmethod(lambda: None)

    def __del__(self):
        self.told()


def wait_for_notice(transport):
    """Block until the kernel has told of a completion; nobody reads it meanwhile."""
    errors = select.poll()
    errors.register(transport.get_extra_info("socket").fileno(), 0)
    assert errors.poll()[0][1] & select.POLLERR


REACTIONS = {
    "abort": lambda transport: transport.abort(),
    "close": lambda transport: transport.close(),
    "write": lambda transport: transport.write(b"late"),
    "write_zerocopy": lambda transport: transport.write_zerocopy(bytes(5000)),
    "write_eof": lambda transport: transport.write_eof(),
    "ask": lambda transport: transport.get_extra_info("socket").fileno(),
}
RELEASES = {
    "close": lambda transport: transport.close(),
    "abort": lambda transport: transport.abort(),
    "reap": lambda transport: transport._reap(),
}


@pytest.mark.parametrize("reaction", REACTIONS)
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("queued", [False, True])
def test_a_buffer_s_end_runs_code(release, reaction, queued):
    """A finaliser may do to the connection what it likes, wherever that lets go of the buffer."""
    called = []

    async def main():
        async with linked() as (transport, protocol, peer):

            def told():
                called.append(reaction)
                with contextlib.suppress(RuntimeError):     # a write after write_eof()
                    REACTIONS[reaction](transport)
            buffer = Telling(DATA[:20_000])
            buffer.told = told
            future = transport.write_zerocopy(buffer)
            del buffer
            if queued:
                transport.write(bytes(16_000_000))
            assert len(peer.recv(20_000, socket.MSG_WAITALL)) == 20_000
            wait_for_notice(transport)
            RELEASES[release](transport)
            reading = asyncio.ensure_future(read_all(peer))
            await future
            await poll(lambda: called)
            transport.close()
            await protocol.called("connection_lost")
            assert protocol.calls.count("connection_lost") == 1
            assert transport.get_write_buffer_size() == 0
            await reading
            await poll(lambda: not asyncio.get_running_loop().zcloop_stats().zerocopy_lingering)
            assert in_flight_now() == 0
    run(main())
    assert called == [reaction]


def test_a_copied_buffer_s_end_aborts():
    """It ends in the middle of sending the queue: what is behind it isn't sent any more."""
    async def main():
        async with linked() as (transport, protocol, peer):
            transport.write(bytes(16_000_000))
            assert transport.get_write_buffer_size() > 0
            buffer = Telling(b"last")
            buffer.told = transport.abort
            future = transport.write_zerocopy(buffer)
            del buffer
            transport.write(b"never sent")
            reading = asyncio.ensure_future(read_all(peer))
            await protocol.called("connection_lost")
            assert protocol.exc is None
            assert await future is None
            assert not (await reading)[0].endswith(b"never sent")
    run(main(), zcloop.Config(send="copy"))


@pytest.mark.parametrize("reaction", REACTIONS)
@pytest.mark.parametrize("by_peer", [False, True])
def test_a_dropped_buffer_s_end_runs_code(by_peer, reaction):
    """The queue is dropped with the buffer in it: nothing is sent past the hole."""
    async def main():
        async with linked() as (transport, protocol, peer):
            transport.write(bytes(16_000_000))
            assert transport.get_write_buffer_size() > 0
            buffer = Telling(b"dropped")
            buffer.told = lambda: REACTIONS[reaction](transport)
            future = transport.write_zerocopy(buffer)
            del buffer
            if by_peer:
                reset(peer)
            else:
                transport.abort()
            await protocol.called("connection_lost")
            with pytest.raises(OSError):
                await future
            assert isinstance(protocol.exc, OSError if by_peer else type(None))
            assert transport.get_write_buffer_size() == 0
            if not by_peer:
                assert not any((await read_all(peer))[0])
    run(main(), zcloop.Config(send="copy"))


@pytest.mark.parametrize("reaction", ["abort", "write"])
def test_code_runs_while_the_queue_is_sent(reaction, monkeypatch):
    """As the collector and signal handlers do, between any two steps; here right after a send."""
    send_vector = SendQueue._send_vector

    def interrupted(transport, queue):
        result = send_vector(transport, queue)
        monkeypatch.undo()
        REACTIONS[reaction](transport)
        return result

    async def main():
        async with linked() as (transport, protocol, peer):
            sent = b"first" * 3_000_000
            transport.write(sent)
            for _ in range(5):
                transport.write(DATA)
            monkeypatch.setattr(SendQueue, "_send_vector", interrupted)
            reading = asyncio.ensure_future(read_all(peer))
            if reaction == "write":
                await poll(lambda: transport.get_write_buffer_size() == 0)
                transport.close()
            await protocol.called("connection_lost")
            assert transport.get_write_buffer_size() == 0
            got, _ = await reading
            whole = sent + 5 * DATA + b"late"
            assert_same(got, whole if reaction == "write" else whole[:len(got)])
    run(main(), zcloop.Config(send="copy"))
