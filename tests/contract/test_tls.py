"""ssl= on both sides, and start_tls in mid-conversation."""
import asyncio
import contextlib
import ssl

import pytest
from support import (
    RecordingBuffered,
    RecordingProtocol,
    assert_same,
    known_gap,
    link,
    pattern,
    poll,
    unix_path,
)


class ViewBuffered(RecordingBuffered):
    def get_buffer(self, sizehint):
        return memoryview(super().get_buffer(sizehint))


factories = pytest.mark.parametrize("factory", [
    RecordingProtocol, ViewBuffered, pytest.param(RecordingBuffered, marks=known_gap(
        "asyncio", "bytes after the first record are lost unless the buffer is a memoryview"))])


@contextlib.asynccontextmanager
async def two_ends(server_kwargs, client_kwargs, factory=RecordingProtocol, unix=False):
    """(server's protocol, client's protocol) of one connection, closed at exit."""
    loop = asyncio.get_running_loop()
    made = []

    def make():
        made.append(factory())
        return made[-1]
    with unix_path() as path:
        if unix:
            server = await loop.create_unix_server(make, path, **server_kwargs)
            _, client = await loop.create_unix_connection(factory, path, **client_kwargs)
        else:
            server = await loop.create_server(make, "127.0.0.1", 0, **server_kwargs)
            _, client = await loop.create_connection(
                factory, *server.sockets[0].getsockname(), **client_kwargs)
        await poll(lambda: made and made[0].transport)
        try:
            yield made[0], client
        finally:
            for protocol in client, made[0]:
                protocol.transport.get_protocol() and protocol.transport.abort()
            server.close()
            await server.wait_closed()
    await client.called("connection_lost")
    await made[0].called("connection_lost")
    await asyncio.sleep(0)


@pytest.mark.parametrize("unix", [False, True])
@factories
async def test_both_sides(contexts, factory, unix):
    server_context, client_context = contexts
    data = pattern(1_000_000)
    async with two_ends({"ssl": server_context},
                        {"ssl": client_context, "server_hostname": "localhost"},
                        factory, unix) as (server, client):
        client.transport.write(data)
        await server.received(len(data))
        assert_same(server.data, data)
        server.transport.writelines([b"re", b"ply"])
        await client.received(5)
        assert client.data == b"reply"
        assert client.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        assert client.transport.get_extra_info("cipher")
        client.transport.close()
        await server.called("connection_lost")
        assert server.exc is None


async def test_wrong_host_name(contexts, loop_errors):
    server_context, client_context = contexts
    loop = asyncio.get_running_loop()
    server = await loop.create_server(RecordingProtocol, "127.0.0.1", 0, ssl=server_context)
    with pytest.raises(ssl.SSLCertVerificationError):
        await loop.create_connection(
            RecordingProtocol, *server.sockets[0].getsockname(), ssl=client_context,
            server_hostname="elsewhere")
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0)
    loop_errors.clear()         # whether the server's failed handshake is reported varies


@pytest.mark.parametrize("name", ["ssl_handshake_timeout", "ssl_shutdown_timeout"])
@pytest.mark.parametrize("value", [0, -1])
async def test_time_outs_must_be_positive(contexts, name, value):
    loop = asyncio.get_running_loop()
    async with link() as (transport, protocol, _):
        with pytest.raises(ValueError, match=f"{name} should be a positive number"):
            await loop.start_tls(transport, protocol, contexts[0], server_side=True,
                                 **{name: value})


async def test_start_tls_wants_a_context():
    loop = asyncio.get_running_loop()
    async with link() as (transport, protocol, _):
        with pytest.raises(TypeError, match="sslcontext is expected to be an instance of"):
            await loop.start_tls(transport, protocol, None)


@pytest.mark.parametrize("unix", [False, True])
@factories
async def test_start_tls_on_both_sides(contexts, factory, unix):
    """A plain conversation first; then the same protocols go on through TLS."""
    loop = asyncio.get_running_loop()
    server_context, client_context = contexts
    async with two_ends({}, {}, factory, unix) as (server, client):
        client.transport.write(b"STARTTLS")
        await server.received(8)
        server.transport.write(b"OK")
        await client.received(2)
        plain = client.transport
        client.transport, server.transport = await asyncio.gather(
            loop.start_tls(client.transport, client, client_context, server_hostname="localhost"),
            loop.start_tls(server.transport, server, server_context, server_side=True))
        assert client.transport is not plain
        data = pattern(2_000_000)
        client.transport.write(data)
        await server.received(8 + len(data))
        assert_same(server.data, b"STARTTLS" + data)
        server.transport.write(b"secret")
        await client.received(8)
        assert client.data == b"OKsecret"
        assert client.calls.count("connection_made") == 1
        assert client.transport.get_extra_info("peername") == plain.get_extra_info("peername")
        client.transport.close()
        await server.called("connection_lost")
        assert server.exc is None


async def test_start_tls_with_data_still_to_be_written(contexts):
    """What was written in the clear goes first."""
    loop = asyncio.get_running_loop()
    server_context, client_context = contexts
    async with two_ends({}, {}) as (server, client):
        client.transport.write(b"p" * 3_000_000)
        await server.received(3_000_000)
        client.transport, server.transport = await asyncio.gather(
            loop.start_tls(client.transport, client, client_context, server_hostname="localhost"),
            loop.start_tls(server.transport, server, server_context, server_side=True))
        client.transport.write(b"s" * 10)
        await server.received(3_000_010)
        assert server.data.endswith(b"pppssssssssss")


async def test_start_tls_with_a_peer_that_speaks_something_else(contexts):
    loop = asyncio.get_running_loop()
    async with link() as (transport, protocol, peer):
        task = asyncio.ensure_future(
            loop.start_tls(transport, protocol, contexts[1], server_hostname="localhost"))
        await asyncio.sleep(0)
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 5)
        with pytest.raises(ssl.SSLError):
            await task
        await poll(transport.is_closing)
        protocol.calls.append("connection_lost")


async def test_start_tls_with_a_peer_that_hangs_up(contexts):
    loop = asyncio.get_running_loop()
    async with link() as (transport, protocol, peer):
        task = asyncio.ensure_future(
            loop.start_tls(transport, protocol, contexts[1], server_hostname="localhost"))
        await asyncio.sleep(0)
        peer.close()
        with pytest.raises(ConnectionError):
            await task
        await poll(transport.is_closing)
        protocol.calls.append("connection_lost")


@known_gap("uvloop", "sendfile is not implemented")
async def test_sendfile_over_tls(contexts, tmp_path):
    """No kernel TLS: fallback=False refuses, the default reads and writes."""
    loop = asyncio.get_running_loop()
    server_context, client_context = contexts
    path = tmp_path / "file"
    path.write_bytes(pattern(1_000_000))
    async with two_ends({"ssl": server_context},
                        {"ssl": client_context, "server_hostname": "localhost"}) as (
            server, client):
        with path.open("rb") as file:
            with pytest.raises(RuntimeError, match="fallback is disabled"):
                await loop.sendfile(client.transport, file, fallback=False)
            assert await loop.sendfile(client.transport, file, 8, 999_000) == 999_000
        await server.received(999_000)
        assert_same(server.data, pattern(1_000_000)[8:999_008])
