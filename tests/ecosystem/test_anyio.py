"""anyio, told the loop by its backend option `loop_factory`: TCP and unix streams, listeners, task
groups, cancel scopes, TLS and threads.

It runs outside of the other tests' runner, since anyio.run() makes its own."""
import socket
import ssl
from functools import partial

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener, TLSStream
from support import assert_same, pattern, unix_path

DATA = pattern(8 * 1024 * 1024)


@pytest.fixture
def run(loop_factory):
    """anyio.run() of a coroutine function on the loop under test."""
    def start(main, *args):
        return anyio.run(main, *args, backend_options={
            "loop_factory": loop_factory, "debug": loop_factory.debug})
    return start


async def echo(stream):
    async with stream:
        async for data in stream:
            await stream.send(data)
        try:
            await stream.send_eof()
        except NotImplementedError:
            pass                        # TLS can't half-close


async def exchange(stream, data=DATA):
    """Send and receive at once; the answer must be what was sent."""
    received = bytearray()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.send, data)
        while len(received) < len(data):
            received += await stream.receive()
    assert_same(received, data)


async def serve_and(listener, client):
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        await client()
        tasks.cancel_scope.cancel()


async def with_echo(client):
    """Await `client(connect)` beside a TCP listener that echoes, to which `connect()` connects."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    await serve_and(listener, partial(client, partial(anyio.connect_tcp, "127.0.0.1", port)))


def test_loop_is_ours(run, loop_factory):
    async def main():
        import asyncio
        return type(asyncio.get_running_loop()).__module__.partition(".")[0]
    assert run(main) == loop_factory.name


def test_tcp(run):
    async def client(connect):
        async with await connect() as stream:
            await exchange(stream)
            raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            await stream.send(b"end")
            await stream.send_eof()
            assert await stream.receive() == b"end"
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
    run(with_echo, client)


def test_unix(run):
    async def main(path):
        async def client():
            async with await anyio.connect_unix(path) as stream:
                await exchange(stream)
        await serve_and(await anyio.create_unix_listener(path), client)
    with unix_path() as path:
        run(main, path)


def test_tls(run, server_tls, client_tls):
    async def main():
        plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = plain.extra(anyio.abc.SocketAttribute.local_port)

        async def client():
            stream = await anyio.connect_tcp("127.0.0.1", port, tls=True, ssl_context=client_tls)
            async with stream:
                assert isinstance(stream, TLSStream)
                await exchange(stream)
            with pytest.raises(ssl.SSLCertVerificationError):
                await anyio.connect_tcp("127.0.0.1", port, tls=True,
                                        ssl_context=ssl.create_default_context())
        # The client whose certificates fail is the server's to report, and not to die of.
        listener = TLSListener(plain, server_tls)
        await serve_and(listener, client)
    run(main)


def test_many_clients_in_a_task_group(run):
    async def client(connect):
        async def one(number):
            async with await connect() as stream:
                for size in 1, 100, 50_000:
                    await exchange(stream, pattern(size, number))

        async with anyio.create_task_group() as tasks:
            for number in range(60):
                tasks.start_soon(one, number)
    run(with_echo, client)


def test_cancelled_receive_loses_nothing(run):
    async def client(connect):
        async with await connect() as stream:
            with anyio.move_on_after(0.02) as scope:
                await stream.receive()
            assert scope.cancelled_caught
            await exchange(stream, b"after the time limit")
    run(with_echo, client)


def test_buffered_receive(run):
    async def client(connect):
        async with await connect() as stream:
            await stream.send(b"line one\nline two\n" + DATA[:100_000])
            buffered = BufferedByteReceiveStream(stream)
            assert await buffered.receive_until(b"\n", 100) == b"line one"
            assert await buffered.receive_until(b"\n", 100) == b"line two"
            assert_same(await buffered.receive_exactly(100_000), DATA[:100_000])
    run(with_echo, client)


def test_threads(run):
    async def main():
        def blocking():
            return anyio.from_thread.run(anyio.sleep, 0), anyio.from_thread.run_sync(id, main)
        assert await anyio.to_thread.run_sync(blocking) == (None, id(main))
    run(main)
