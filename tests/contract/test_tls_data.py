"""What TLS does with data: backpressure, buffers of all kinds, the end of a connection."""
import asyncio
import contextlib
import socket

import pytest
from support import (
    Recorder,
    RecordingBuffered,
    RecordingProtocol,
    assert_same,
    known_gap,
    pattern,
    poll,
)
from test_tls import two_ends

SIZE = 1_000_000


@contextlib.asynccontextmanager
async def narrow(tls):
    """Two ends, and small send buffers in the kernel."""
    async with two_ends(*tls) as (server, client):
        for protocol in server, client:
            sock = protocol.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 128 * 1024)
        yield server, client


def fill(client):
    """Write until the transport has had enough; returns what was written."""
    written = 0
    while "pause_writing" not in client.calls:
        client.transport.write(pattern(SIZE))
        written += 1
    return pattern(SIZE) * written


@pytest.fixture
def tls(contexts):
    """Arguments of two_ends."""
    server, client = contexts
    return {"ssl": server}, {"ssl": client, "server_hostname": "localhost"}


async def test_backpressure(tls):
    """The writer is told to pause when the reader does, and to go on when it has all."""
    async with narrow(tls) as (server, client):
        server.transport.pause_reading()
        data = fill(client)
        assert client.transport.get_write_buffer_size() > 0
        assert "resume_writing" not in client.calls
        server.transport.resume_reading()
        await client.called("resume_writing")
        await server.received(len(data))
        assert_same(server.data, data)
        assert client.transport.get_write_buffer_size() == 0


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("view", [False, True])
async def test_a_buffer_may_change_once_it_was_written(tls, paused, view):
    async with narrow(tls) as (server, client):
        expected = b""
        if paused:
            server.transport.pause_reading()
            expected = fill(client)
        buffer = bytearray(pattern(SIZE))
        client.transport.write(memoryview(buffer) if view else buffer)
        buffer[:] = bytes(SIZE)
        client.transport.writelines([buffer, b"end"])
        buffer[:] = b"x" * SIZE
        server.transport.resume_reading()
        expected += pattern(SIZE) + bytes(SIZE) + b"end"
        await server.received(len(expected))
        assert_same(server.data, expected)


@pytest.mark.loops("zcloop", "zcloop-debug")       # others keep the buffer itself
@pytest.mark.parametrize("how", ["write", "writelines"])
async def test_a_buffer_may_change_though_pause_writing_wrote(tls, how):
    """What a callback writes from within a write is queued behind it, and is not taken for it."""
    async with narrow(tls) as (server, client):
        def notice(protocol, name):
            if name == "pause_writing":
                protocol.transport.writelines([b"!", b"?"])
        client.hook = notice
        server.transport.pause_reading()
        buffer = bytearray(pattern(4 * SIZE))
        if how == "write":
            client.transport.write(buffer)
        else:
            client.transport.writelines([buffer, b"and"])
        assert "pause_writing" in client.calls
        buffer[:] = bytes(4 * SIZE)
        buffer.clear()                      # nobody has it exported
        client.hook = None
        server.transport.resume_reading()
        expected = pattern(4 * SIZE) + (b"and" if how == "writelines" else b"") + b"!?"
        await server.received(len(expected))
        assert_same(server.data, expected)


async def test_items_wider_than_a_byte(tls):
    async with two_ends(*tls) as (server, client):
        client.transport.write(memoryview(pattern(80_000)).cast("Q"))
        client.transport.write(memoryview(pattern(80_000))[::2].tobytes())
        await server.received(120_000)
        assert_same(server.data, pattern(80_000) + pattern(80_000)[::2])
        await poll(lambda: client.transport.get_write_buffer_size() == 0)


async def test_close_sends_what_was_written(tls):
    """All of it, though the reader isn't reading yet when the writer closes."""
    async with narrow(tls) as (server, client):
        server.transport.pause_reading()
        data = fill(client)
        client.transport.write(b"last")
        client.transport.close()
        client.transport.write(b"too late")
        server.transport.resume_reading()
        await server.called("eof_received")
        assert_same(server.data, data + b"last")


async def test_abort_drops_what_was_written(tls):
    async with narrow(tls) as (server, client):
        server.transport.pause_reading()
        data = fill(client)
        client.transport.abort()
        await client.called("connection_lost")
        server.transport.resume_reading()
        await server.called("connection_lost")
        assert len(server.data) < len(data)


async def test_pausing_in_the_middle(tls):
    """A pause from within data_received: what came with that call is the last."""
    class Stopping(RecordingProtocol):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()

    data = pattern(1_000_000)
    async with two_ends(*tls, Stopping) as (server, client):
        client.transport.write(data)
        while len(server.data) < len(data):
            await server.received(len(server.data) + 1)
            assert not server.transport.is_reading()
            server.transport.resume_reading()
        assert_same(server.data, data)


@known_gap("asyncio", "bytes after the first record are lost unless the buffer is a memoryview")
async def test_a_buffer_smaller_than_what_came(tls):
    data = pattern(200_000)
    async with two_ends(*tls, lambda: RecordingBuffered(size=1000)) as (server, client):
        client.transport.writelines([data[:10], data[10:20], data[20:]])
        await server.received(len(data))
        assert_same(server.data, data)


class BufferedByShape(Recorder):
    """Has the methods of a BufferedProtocol, and derives from none."""

    def __init__(self):
        super().__init__()
        self.buffer = bytearray(50_000)

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.data += self.buffer[:nbytes]
        self.note("buffer_updated")


@known_gap("asyncio", "buffered protocols are known by their type only", run=False)
async def test_a_buffered_protocol_by_shape(tls):
    async with two_ends(*tls, BufferedByShape) as (server, client):
        client.transport.write(pattern(300_000))
        await server.received(300_000)
        assert_same(server.data, pattern(300_000))


async def test_tls_within_tls(tls, contexts):
    loop = asyncio.get_running_loop()
    server_context, client_context = contexts
    data = pattern(SIZE)
    async with two_ends(*tls) as (server, client):
        client.transport, server.transport = await asyncio.gather(
            loop.start_tls(client.transport, client, client_context, server_hostname="localhost"),
            loop.start_tls(server.transport, server, server_context, server_side=True))
        client.transport.write(data)
        server.transport.write(data)
        await server.received(SIZE)
        await client.received(SIZE)
        assert_same(server.data, data)
        assert_same(client.data, data)
        client.transport.close()
        await server.called("connection_lost")
        assert server.exc is None


async def test_the_protocol_changes_its_kind(tls):
    """set_protocol from one to the other, in mid-stream."""
    async with two_ends(*tls) as (server, client):
        client.transport.write(b"first")
        await server.received(5)
        buffered = RecordingBuffered(size=64)
        buffered.transport = server.transport
        server.transport.set_protocol(buffered)
        client.transport.write(pattern(100_000))
        await poll(lambda: len(buffered.data) >= 100_000)
        assert_same(buffered.data, pattern(100_000))
        server.transport.set_protocol(server)
        client.transport.write(b"last")
        await server.received(9)
        assert_same(server.data, b"firstlast")


@pytest.mark.loops("zcloop", "zcloop-debug")
async def test_a_page_buffer_takes_what_was_decrypted(tls):
    """Python can't write to it: the bytes are copied there."""
    import zcloop
    memory = zcloop.PageBuffer(100_000)

    class Fill(RecordingBuffered):
        def get_buffer(self, sizehint):
            return memoryview(memory)[len(self.data):] if len(self.data) < 100_000 else bytearray(1)

        def buffer_updated(self, nbytes):
            at = len(self.data)
            self.data += memoryview(memory)[at:at + nbytes]
            self.note("buffer_updated")

    async with two_ends(*tls) as (server, client):
        filling = Fill()
        filling.transport = server.transport
        server.transport.set_protocol(filling)
        client.transport.write(pattern(100_000))
        await filling.received(100_000)
        assert_same(memory, pattern(100_000))
        server.transport.set_protocol(server)
