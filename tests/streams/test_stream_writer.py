"""The writer, the public functions, and TLS in mid-conversation."""
import asyncio
import contextlib
import importlib.util

import pytest
from stream_fakes import FakeTransport, connected, started, ticks

from zcloop import streams
from zcloop.fast_streams import StreamReaderProtocol, StreamWriter, upgrade
from zcloop.reader import FILL_MIN, StreamReader


class Writable(FakeTransport):
    def __init__(self, protocol):
        super().__init__(protocol)
        self.written = []

    def write(self, data):
        self.written.append(("write", data))

    def writelines(self, buffers):
        self.written.append(("writelines", buffers))


def writer_and_transport(transport_class=Writable):
    reader, transport = connected(transport_class)
    loop = asyncio.get_running_loop()
    return StreamWriter(transport, transport.protocol, reader, loop), transport


async def test_buffers_are_handed_over_as_they_are():
    writer, transport = writer_and_transport()
    buffers = [b"one", bytearray(b"two"), memoryview(b"three")]
    writer.writelines(buffers)
    writer.write(buffers[0])
    [(first, got), (second, data)] = transport.written
    assert (first, second) == ("writelines", "write")
    assert got is buffers
    assert data is buffers[0]
    writer.close()


async def test_drain_without_anything_to_wait_for_does_not_suspend():
    writer, _ = writer_and_transport()
    with pytest.raises(StopIteration):
        writer.drain().send(None)
    writer.close()


async def test_drain_waits_while_the_transport_is_full():
    writer, transport = writer_and_transport()
    transport.protocol.pause_writing()
    tasks = [await started(writer.drain()) for _ in range(3)]
    transport.protocol.resume_writing()
    await asyncio.gather(*tasks)
    await writer.drain()
    writer.close()


async def test_drain_while_the_connection_is_lost():
    writer, transport = writer_and_transport()
    transport.protocol.pause_writing()
    task = await started(writer.drain())
    transport.lose(ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError, match="gone"):
        await task
    with pytest.raises(ConnectionResetError, match="gone"):
        await writer.drain()


async def test_drain_after_the_connection_was_closed():
    writer, transport = writer_and_transport()
    transport.lose(None)
    with pytest.raises(ConnectionResetError, match="Connection lost"):
        await writer.drain()


async def test_drain_of_a_closing_transport_lets_the_loop_run():
    writer, transport = writer_and_transport()
    writer.close()
    asyncio.get_running_loop().call_soon(transport.lose, None)
    with pytest.raises(ConnectionResetError, match="Connection lost"):
        await writer.drain()


async def test_drain_asks_any_other_protocol():
    drained = []

    class Protocol(StreamReaderProtocol):
        async def _drain_helper(self):
            drained.append(True)

    reader, transport = connected(Writable, protocol_class=Protocol)
    writer = StreamWriter(transport, transport.protocol, reader, asyncio.get_running_loop())
    await writer.drain()
    assert drained == [True]
    writer.close()


async def test_drain_of_a_writer_without_a_reader():
    loop = asyncio.get_running_loop()
    protocol = StreamReaderProtocol(None, loop=loop)
    transport = Writable(protocol)
    protocol.connection_made(transport)
    writer = StreamWriter(transport, protocol, None, loop)
    await writer.drain()
    writer.close()


# -- over sockets ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving(callback, module=streams, **kwargs):
    """A server's address; at the end every connection's `callback` must have come to its end."""
    served = []

    async def serve(reader, writer):
        served.append(asyncio.current_task())
        await callback(reader, writer)

    server = await module.start_server(serve, "127.0.0.1", 0, **kwargs)
    try:
        yield server.sockets[0].getsockname()
        await asyncio.gather(*served)
    finally:
        server.close()
        await server.wait_closed()


async def finished(writer):
    writer.close()
    await writer.wait_closed()


async def test_open_connection_and_start_server():
    seen = []

    async def echo(reader, writer):
        seen.append((type(reader), type(writer), reader._limit))
        async for line in reader:
            writer.write(line.upper())
            await writer.drain()
        await finished(writer)

    async with serving(echo, limit=1000) as address:
        reader, writer = await streams.open_connection(*address, limit=2000)
        assert (type(reader), type(writer), reader._limit) == (StreamReader, StreamWriter, 2000)
        writer.writelines([b"one\n", b"two\nthr", b"ee"])
        writer.write_eof()
        assert await reader.read() == b"ONE\nTWO\nTHREE"
        await finished(writer)
    assert seen == [(StreamReader, StreamWriter, 1000)]


async def test_the_defaults_are_asyncios():
    import inspect
    for name in ("open_connection", "start_server"):
        ours = inspect.signature(getattr(streams, name)).parameters
        theirs = inspect.signature(getattr(asyncio, name)).parameters
        assert [(p.name, p.kind, p.default) for p in ours.values()] == \
            [(p.name, p.kind, p.default) for p in theirs.values()]


async def test_large_results_both_ways():
    size = 3 * FILL_MIN + 7

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                writer.write(await reader.readexactly(size))
                await writer.drain()
        await finished(writer)

    async with serving(serve) as address:
        reader, writer = await streams.open_connection(*address)
        buf = bytearray(size)
        for i in range(20):
            data = bytes([i]) * size
            writer.write(data)
            if i % 3 == 0:
                assert await reader.readexactly(size) == data
            elif i % 3 == 1:
                assert await reader.readinto_exactly(buf) == size
                assert buf == data
            else:
                assert await reader.readview(size) == data
        await finished(writer)


@pytest.mark.parametrize("how", ["close", "abort", "close and cancel", "abort and cancel",
                                 "cancel and close", "cancel and abort"])
async def test_closing_while_a_result_is_filled(how):
    async def serve(reader, writer):
        writer.write(b"some")
        await reader.read()
        await finished(writer)

    async with serving(serve) as address:
        reader, writer = await streams.open_connection(*address)
        assert await reader.readexactly(2) == b"so"
        task = await started(reader.readexactly(4 * FILL_MIN))
        if how.startswith("cancel"):
            task.cancel()
        if "close" in how:
            writer.close()
        else:
            writer.transport.abort()
        if "cancel" in how:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await writer.wait_closed()
            assert await reader.read() == b"me"
        else:
            with pytest.raises(asyncio.IncompleteReadError) as info:
                await task
            assert info.value.partial == b"me"
            await writer.wait_closed()


async def test_peer_closes_while_a_result_is_filled():
    async def serve(reader, writer):
        writer.write(bytes(FILL_MIN))
        await reader.readexactly(1)
        await finished(writer)

    async with serving(serve) as address:
        reader, writer = await streams.open_connection(*address)
        task = await started(reader.readexactly(4 * FILL_MIN))
        writer.write(b"x")
        with pytest.raises(asyncio.IncompleteReadError) as info:
            await task
        assert info.value.partial == bytes(FILL_MIN)
        await finished(writer)


async def test_peer_resets_while_a_result_is_filled():
    async def serve(reader, writer):
        writer.write(bytes(FILL_MIN))
        await reader.readexactly(1)
        writer.transport.abort()

    async with serving(serve) as address:
        reader, writer = await streams.open_connection(*address)
        task = await started(reader.readexactly(4 * FILL_MIN))
        writer.write(b"xy" * 1000)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await task
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()


# -- TLS --------------------------------------------------------------------------------

has_certificates = importlib.util.find_spec("test.test_asyncio.utils") is not None
needs_certificates = pytest.mark.skipif(
    not has_certificates, reason="this Python comes without its test package, and its certificates")


def contexts():
    from test.test_asyncio import utils
    return utils.simple_server_sslcontext(), utils.simple_client_sslcontext(disable_verify=True)


@needs_certificates
@pytest.mark.parametrize("module", [streams, asyncio], ids=["zcloop", "asyncio"])
async def test_start_tls_in_mid_conversation(module):
    """What was received before is read first, whether the reader is paused by it or not."""
    server_context, client_context = contexts()
    size = 3 * FILL_MIN

    async def serve(reader, writer):
        assert await reader.readline() == b"STARTTLS\n"
        writer.write(b"go\n" + b"still plain\n" * 10)
        await writer.start_tls(server_context)
        writer.write(b"secret\n")
        assert await reader.readexactly(size) == b"x" * size
        writer.write(b"y" * size)
        await finished(writer)

    async with serving(serve, module) as address:
        reader, writer = await module.open_connection(*address, limit=50)
        if module is asyncio:
            # What the loop does with it when the reader isn't fast already.
            assert type(reader) is StreamReader or upgrade_open(writer)
        writer.write(b"STARTTLS\n")
        assert await reader.readline() == b"go\n"
        below = writer.transport
        task = await started(reader.read())         # a reader that waits is in nobody's way
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await writer.start_tls(client_context)
        assert writer.transport is not below
        assert reader._transport is writer.transport
        for _ in range(10):
            assert await reader.readline() == b"still plain\n"
        assert await reader.readline() == b"secret\n"
        writer.write(b"x" * size)
        assert await reader.readexactly(size) == b"y" * size
        assert await reader.read() == b""
        await finished(writer)


def upgrade_open(writer):
    """Upgrade a connection that is open, for loops that don't do it when it is made."""
    protocol, transport = writer._protocol, writer.transport
    protocol._transport = protocol._stream_reader._transport = None
    assert upgrade(protocol)
    protocol._transport = protocol._stream_reader._transport = transport
    return True


@needs_certificates
async def test_tls_from_the_start():
    server_context, client_context = contexts()
    size = 5 * FILL_MIN

    async def serve(reader, writer):
        writer.write(await reader.readexactly(size))
        async for line in reader:
            writer.write(line)
        await finished(writer)

    async with serving(serve, ssl=server_context) as address:
        reader, writer = await streams.open_connection(
            *address, ssl=client_context, server_hostname="")
        data = bytes(range(256)) * (size // 256)
        writer.write(data)
        assert await reader.readexactly(size) == data
        writer.write(b"line\n")
        assert await reader.readline() == b"line\n"
        await finished(writer)
    await ticks(3)
