"""Peers that reset, vanish, die or are never read from."""
import asyncio
import os
import signal
import subprocess
import sys

import pytest
from support import FACTORIES, RecordingProtocol, link, listener, recv_exactly, reset, settle

both = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)


@both
async def test_reset_while_idle(factory):
    async with link("tcp-server", factory) as (transport, protocol, peer):
        reset(peer)
        await protocol.called("connection_lost")
        assert isinstance(protocol.exc, ConnectionResetError)
        assert "eof_received" not in protocol.calls
        assert transport.is_closing()


@both
async def test_reset_while_writing(factory):
    async with link("tcp-server", factory) as (transport, protocol, peer):
        transport.write(b"x" * 20_000_000)
        await recv_exactly(peer, 1000)
        reset(peer)
        await protocol.called("connection_lost")
        assert isinstance(protocol.exc, (ConnectionResetError, BrokenPipeError))
        assert transport.get_write_buffer_size() == 0


async def test_reset_while_reading_is_paused_and_bytes_wait_to_be_sent():
    async with link("tcp-server") as (transport, protocol, peer):
        transport.pause_reading()
        transport.write(b"x" * 20_000_000)
        reset(peer)
        await protocol.called("connection_lost")
        assert isinstance(protocol.exc, (ConnectionResetError, BrokenPipeError))


async def test_reset_while_reading_is_paused_is_told_on_resume():
    async with link("tcp-server") as (transport, protocol, peer):
        transport.pause_reading()
        reset(peer)
        await settle()
        if "connection_lost" not in protocol.calls:
            transport.resume_reading()
        await protocol.called("connection_lost")
        assert isinstance(protocol.exc, ConnectionResetError)


async def test_reset_after_half_close():
    async with link("tcp-server", lambda: RecordingProtocol(eof_result=True)) as (
            transport, protocol, peer):
        peer.shutdown(1)
        await protocol.called("eof_received")
        reset(peer)
        await settle()
        while "connection_lost" not in protocol.calls:
            transport.write(b"x")           # asyncio hears of it only when it writes
            await asyncio.sleep(0)
        assert isinstance(protocol.exc, (ConnectionResetError, BrokenPipeError))


async def test_peer_closes_with_unread_data():
    """Closing a socket with bytes in its receive queue sends a RST."""
    async with link("tcp-server") as (transport, protocol, peer):
        transport.write(b"never read")
        await settle()
        peer.close()
        await protocol.called("connection_lost")
        assert isinstance(protocol.exc, ConnectionResetError)


async def test_write_after_the_peer_closed():
    async with link("unix-server", lambda: RecordingProtocol(eof_result=True)) as (
            transport, protocol, peer):
        peer.close()
        await protocol.called("eof_received")
        transport.write(b"x")
        await protocol.called("connection_lost")
        assert isinstance(protocol.exc, BrokenPipeError)


async def test_killed_process():
    """kill -9 of the peer: the kernel closes its socket, unread bytes make that a RST."""
    loop = asyncio.get_running_loop()
    code = ("import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
            "s.sendall(b'ready'); sys.stdin.read()")
    with (
        listener() as listening,
        subprocess.Popen([sys.executable, "-c", code, str(listening.getsockname()[1])],
                         stdin=subprocess.PIPE) as process,
    ):
        sock, _ = listening.accept()
        transport, protocol = await loop.connect_accepted_socket(RecordingProtocol, sock)
        await protocol.received(5)
        transport.write(b"x" * 20_000_000)
        process.send_signal(signal.SIGKILL)
        await protocol.called("connection_lost")
        assert isinstance(protocol.exc, (ConnectionResetError, BrokenPipeError))
    await settle()


def test_fork_with_a_live_loop(loop_factory):
    """The child gets copies of descriptors; leaving it at once must not disturb the parent."""
    async def main():
        async with link("tcp-server") as (transport, protocol, peer):
            peer.send(b"before")
            await protocol.received(6)
            pid = os.fork()
            if pid == 0:
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            peer.send(b"after")
            await protocol.received(11)
            transport.write(b"reply")
            assert await recv_exactly(peer, 5) == b"reply"
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
