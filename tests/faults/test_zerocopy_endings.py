"""Connections that end with sends in flight: the buffer outlives the kernel's use of it.

The connection ends in each way there is while its loop goes on (flight_tools.py has how it is
made, and how a buffer that was let go too early or not at all shows).
"""
import asyncio
import contextlib
import socket
import sys

import pytest
from flight_tools import (
    DATA,
    SHORT,
    in_flight,
    in_flight_now,
    linked,
    nothing_held,
    read_all,
    read_to_end,
    run,
    unlocked,
)
from support import RecordingProtocol, assert_same, pattern, poll, reset

import zcloop


def counted(transport):
    """(sends, how many of them are complete), of a transport that may have ended long ago."""
    stats = transport.get_extra_info("zcloop")
    return stats.zerocopy_sends, stats.zerocopy_completed


def test_close_delivers_everything():
    """connection_lost doesn't wait for the peer; descriptor and buffer do."""
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.close()
            await protocol.called("connection_lost")
            assert protocol.exc is None
            assert transport.get_extra_info("socket").fileno() == -1
            assert not future.done()
            assert not unlocked(buffer)
            assert asyncio.get_running_loop().zcloop_stats().zerocopy_lingering == 1
            sends, complete = counted(transport)
            assert sends > complete
            reading = asyncio.ensure_future(read_all(peer))
            assert await future is None
            assert unlocked(buffer)
            got, error = await reading
            assert error is None
            assert_same(got, DATA)
            await nothing_held(buffer)
            assert counted(transport) == (sends, sends)
    run(main())


def test_bytes_are_held_too():
    """Nobody but the kernel's hold has a reference on what was written."""
    async def main():
        async with in_flight() as (transport, protocol, peer, _, _):
            before = sys.getrefcount(data := pattern(100_000, seed=5))
            transport.write(data)
            queued = transport.get_write_buffer_size()
            transport.close()
            assert sys.getrefcount(data) > before
            got, _ = await read_all(peer)
            assert_same(got, DATA + data)
            await poll(lambda: sys.getrefcount(data) == before)
            assert queued >= 0
            await protocol.called("connection_lost")
            await poll(lambda: not in_flight_now())
    run(main())


def test_close_gives_a_stalled_peer_up():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.close()
            await protocol.called("connection_lost")
            assert await future is None       # the kernel had all of it, and let go
            assert unlocked(buffer)
            got, error = read_to_end(peer)
            assert error is not None
            assert_same(got, DATA[:len(got)])
            await nothing_held(buffer)
    run(main(), SHORT)


def test_close_gives_a_stalled_peer_up_with_a_queue():
    """What is queued behind is bounded, too; its future says that it wasn't sent."""
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            behind = bytearray(16_000_000)
            second = transport.write_zerocopy(behind)
            assert transport.get_write_buffer_size() > 0
            transport.close()
            await protocol.called("connection_lost")
            assert isinstance(protocol.exc, OSError)
            with pytest.raises(OSError):
                await second
            await future
            got, error = read_to_end(peer)
            assert error is not None
            assert_same(got, DATA[:len(got)])
            await nothing_held(buffer)
            await nothing_held(behind)
    run(main(), SHORT)


@pytest.mark.parametrize("before", [None, "close", "write_eof"])
def test_abort_lets_go_at_once(before):
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            if before == "close":
                transport.write(bytes(16_000_000))      # so that close() has to wait
            if before:
                getattr(transport, before)()
            transport.abort()
            await protocol.called("connection_lost")
            assert protocol.exc is None
            await nothing_held(buffer)
            sends, complete = counted(transport)
            assert complete == sends > 0
            assert future.done()
            got, error = read_to_end(peer)
            assert error is not None
            assert_same(got, DATA[:len(got)])
    run(main())


def test_peer_resets():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            reset(peer)
            await protocol.called("connection_lost")
            assert isinstance(protocol.exc, ConnectionResetError)
            assert await future is None
            await nothing_held(buffer)
            late = transport.write_zerocopy(b"late")
            with pytest.raises(ConnectionResetError):
                await late
    run(main())


def test_a_reset_after_close_lets_go():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.close()
            await protocol.called("connection_lost")
            assert not unlocked(buffer)
            reset(peer)
            await future
            await nothing_held(buffer)
    run(main())


def test_write_eof_delivers_everything():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.write_eof()
            reading = asyncio.ensure_future(read_all(peer))
            await future
            assert unlocked(buffer)
            got, error = await reading
            assert error is None
            assert_same(got, DATA)
            assert not transport.is_closing()
            transport.close()
            await protocol.called("connection_lost")
    run(main())


def test_cancelling_ends_the_waiting_only():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            async def waits():
                await future
            task = asyncio.ensure_future(waits())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert future.cancelled()
            assert not unlocked(buffer)
            transport.close()
            got, error = await read_all(peer)
            assert error is None
            assert_same(got, DATA)
            await nothing_held(buffer)
            await protocol.called("connection_lost")
    run(main())


def test_sendfile_after_sends_in_flight(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(pattern(300_000, seed=99))

    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            reading = asyncio.ensure_future(read_all(peer))
            with path.open("rb") as file:
                await asyncio.get_running_loop().sendfile(transport, file)
            transport.close()
            await future
            assert unlocked(buffer)
            got, error = await reading
            assert error is None
            assert_same(got, DATA + path.read_bytes())
            await protocol.called("connection_lost")
            await nothing_held(buffer)
    run(main())


def test_set_protocol_with_sends_in_flight():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            second = RecordingProtocol()
            transport.set_protocol(second)
            peer.send(b"to the second")
            await second.received(13)
            transport.close()
            await second.called("connection_lost")
            reading = asyncio.ensure_future(read_all(peer))
            await future
            assert unlocked(buffer)
            assert_same((await reading)[0], DATA)
            assert "connection_lost" not in protocol.calls
            await nothing_held(buffer)
    run(main())


def test_a_peer_that_sends_after_close_is_reset():
    """As by a plain socket that was closed; else it would fill a buffer that nobody empties."""
    def send_on(peer):
        peer.setblocking(True)
        with pytest.raises(ConnectionError):
            while True:
                peer.send(bytes(65536))

    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.close()
            await protocol.called("connection_lost")
            assert not unlocked(buffer)
            await asyncio.get_running_loop().run_in_executor(None, send_on, peer)
            await future
            await nothing_held(buffer)
    run(main())


def test_close_with_something_unread_resets():
    """As the close of a plain socket does; the peer doesn't wait for what it will never get."""
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.pause_reading()
            peer.send(b"unread")
            transport.close()
            await protocol.called("connection_lost")
            assert protocol.exc is None
            await future
            await nothing_held(buffer)
            assert read_to_end(peer)[1] is not None
    run(main())


def test_a_send_that_starts_after_close_is_bounded_too():
    """Nothing is in flight at close(): the flight is queued behind what is copied."""
    async def main():
        async with linked() as (transport, protocol, peer):
            while not transport.get_write_buffer_size():
                transport.write(bytes(65536))
            transport.write(bytes(4_000_000))
            behind = bytearray(16_000_000)
            future = transport.write_zerocopy(behind)
            assert in_flight_now() == 0
            transport.close()
            while not in_flight_now():
                with contextlib.suppress(BlockingIOError):
                    peer.recv(65536, socket.MSG_DONTWAIT)
                await asyncio.sleep(0)
            await protocol.called("connection_lost")
            assert isinstance(protocol.exc, OSError)
            with pytest.raises(OSError):
                await future
            await nothing_held(behind)
    run(main(), zcloop.Config(send="zerocopy", zerocopy_threshold=5_000_000, zerocopy_linger=0.3))
