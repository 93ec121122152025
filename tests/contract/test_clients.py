"""create_connection and connect_accepted_socket."""
import asyncio
import errno
import socket
import sys

import pytest
from support import (
    RecordingBuffered,
    RecordingProtocol,
    known_gap,
    listener,
    poll,
    settle,
)


def unused_port():
    with listener() as sock:
        return sock.getsockname()[1]


async def close(transport, protocol):
    transport.close()
    await protocol.called("connection_lost")


async def exchange(loop, transport, protocol, peer):
    peer.setblocking(False)
    transport.write(b"ping")
    assert await loop.sock_recv(peer, 10) == b"ping"
    peer.send(b"pong")
    await protocol.received(4)
    await close(transport, protocol)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_connect(family):
    loop = asyncio.get_running_loop()
    with listener(family) as listening:
        host, port = listening.getsockname()[:2]
        transport, protocol = await loop.create_connection(RecordingProtocol, host, port)
        peer, _ = listening.accept()
        with peer:
            await exchange(loop, transport, protocol, peer)


async def test_connect_by_name():
    loop = asyncio.get_running_loop()
    with listener() as listening:
        transport, protocol = await loop.create_connection(
            RecordingProtocol, "localhost", listening.getsockname()[1], family=socket.AF_INET)
        peer, _ = listening.accept()
        with peer:
            await exchange(loop, transport, protocol, peer)


@pytest.mark.parametrize("connected", [True, False])
async def test_sock(connected):
    loop = asyncio.get_running_loop()
    with listener() as listening:
        sock = socket.create_connection(listening.getsockname())
        sock.setblocking(not connected)
        transport, protocol = await loop.create_connection(RecordingProtocol, sock=sock)
        peer, _ = listening.accept()
        with peer:
            await exchange(loop, transport, protocol, peer)
    await poll(lambda: sock.fileno() == -1)


async def test_local_addr():
    loop = asyncio.get_running_loop()
    with listener() as listening:
        transport, protocol = await loop.create_connection(
            RecordingProtocol, *listening.getsockname(), local_addr=("127.0.0.9", 0))
        assert transport.get_extra_info("sockname")[0] == "127.0.0.9"
        peer, address = listening.accept()
        with peer:
            assert address[0] == "127.0.0.9"
            await exchange(loop, transport, protocol, peer)


@known_gap("uvloop", "the message does not name the address")
async def test_local_addr_that_is_not_here():
    loop = asyncio.get_running_loop()
    with listener() as listening, pytest.raises(OSError) as caught:
        await loop.create_connection(
            RecordingProtocol, *listening.getsockname(), local_addr=("192.0.2.1", 0))
    assert caught.value.errno == errno.EADDRNOTAVAIL
    assert "error while attempting to bind on address ('192.0.2.1', 0)" in str(caught.value)


@known_gap("uvloop", "create_connection has no happy_eyeballs_delay")
@pytest.mark.parametrize("kwargs", [
    dict(happy_eyeballs_delay=0.05), dict(happy_eyeballs_delay=0.05, interleave=2),
    dict(interleave=1), dict(interleave=0), dict(happy_eyeballs_delay=None)])
async def test_happy_eyeballs(kwargs):
    loop = asyncio.get_running_loop()
    with listener() as listening:
        transport, protocol = await loop.create_connection(
            RecordingProtocol, "localhost", listening.getsockname()[1], **kwargs)
        peer, _ = listening.accept()
        with peer:
            await exchange(loop, transport, protocol, peer)


@known_gap("uvloop", "create_connection has no happy_eyeballs_delay")
@pytest.mark.parametrize("delay", [None, 0.01, 5])
async def test_the_next_address_is_tried_after_a_refusal(delay, monkeypatch):
    """Refused addresses come first; the delay must not be waited for after a refusal."""
    loop = asyncio.get_running_loop()
    refused = [("127.0.0.1", unused_port()) for _ in range(3)]
    with listener() as listening:
        async def getaddrinfo(*args, **kwargs):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)
                    for address in [*refused, listening.getsockname()]]
        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        transport, protocol = await loop.create_connection(
            RecordingProtocol, "some.name", 1, happy_eyeballs_delay=delay)
        peer, _ = listening.accept()
        with peer:
            await exchange(loop, transport, protocol, peer)


async def test_refused():
    port = unused_port()
    with pytest.raises(ConnectionRefusedError) as caught:
        await asyncio.get_running_loop().create_connection(RecordingProtocol, "127.0.0.1", port)
    assert caught.value.errno == errno.ECONNREFUSED


@known_gap("uvloop", "the message does not name the address")
async def test_refusal_names_the_address():
    port = unused_port()
    with pytest.raises(OSError, match=rf"Connect call failed \('127.0.0.1', {port}\)"):
        await asyncio.get_running_loop().create_connection(RecordingProtocol, "127.0.0.1", port)


@known_gap("uvloop", "create_connection has no happy_eyeballs_delay")
async def test_all_refused_is_one_error(monkeypatch):
    loop = asyncio.get_running_loop()
    refused = [("127.0.0.1", unused_port()), ("127.0.0.2", unused_port())]

    async def getaddrinfo(*args, **kwargs):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in refused]
    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    for delay in None, 0.01:
        with pytest.raises(OSError, match=r"^Multiple exceptions: ") as caught:
            await loop.create_connection(
                RecordingProtocol, "some.name", 1, happy_eyeballs_delay=delay)
        for address in refused:
            assert str(address) in str(caught.value)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="all_errors= is new in 3.12")
@known_gap("uvloop", "create_connection has no all_errors")
async def test_all_errors(monkeypatch):
    loop = asyncio.get_running_loop()
    with pytest.raises(ExceptionGroup) as caught:
        await loop.create_connection(
            RecordingProtocol, "127.0.0.1", unused_port(), all_errors=True)
    assert [type(e) for e in caught.value.exceptions] == [ConnectionRefusedError]
    assert "create_connection failed" in str(caught.value)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="all_errors= is known from 3.12 on")
async def test_all_errors_is_unknown():
    with pytest.raises(TypeError, match="all_errors"):
        await asyncio.get_running_loop().create_connection(
            RecordingProtocol, "127.0.0.1", 1, all_errors=True)


async def test_unknown_name():
    with pytest.raises(socket.gaierror):
        await asyncio.get_running_loop().create_connection(
            RecordingProtocol, "no-such-host.invalid", 1)


async def test_argument_errors():
    loop = asyncio.get_running_loop()
    with (
        socket.socket() as sock,
        pytest.raises(ValueError, match="host/port and sock can not be specified"),
    ):
        await loop.create_connection(RecordingProtocol, "127.0.0.1", 1, sock=sock)
    with pytest.raises(ValueError, match="host and port was not specified and no sock specified"):
        await loop.create_connection(RecordingProtocol)
    with pytest.raises(ValueError, match="server_hostname is only meaningful with ssl"):
        await loop.create_connection(RecordingProtocol, "127.0.0.1", 1, server_hostname="x")
    with pytest.raises(ValueError, match="server_hostname"):
        await loop.create_connection(RecordingProtocol, ssl=True)
    with pytest.raises(ValueError, match="ssl_handshake_timeout is only meaningful with ssl"):
        await loop.create_connection(RecordingProtocol, "127.0.0.1", 1, ssl_handshake_timeout=1)
    with pytest.raises(ValueError, match="ssl_shutdown_timeout is only meaningful with ssl"):
        await loop.create_connection(RecordingProtocol, "127.0.0.1", 1, ssl_shutdown_timeout=1)
    with (
        socket.socket(type=socket.SOCK_DGRAM) as sock,
        pytest.raises(ValueError, match="A Stream Socket was expected"),
    ):
        await loop.create_connection(RecordingProtocol, sock=sock)


@known_gap("asyncio", "leaves the socket to the garbage collector", run=False)
async def test_protocol_factory_that_raises():
    def factory():
        raise ZeroDivisionError("factory")
    with listener() as listening, pytest.raises(ZeroDivisionError):
        await asyncio.get_running_loop().create_connection(factory, *listening.getsockname())


async def test_cancelled_connect_leaves_no_descriptor():
    """A full accept queue: the kernel drops the SYN, and connect waits."""
    loop = asyncio.get_running_loop()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        fillers = []
        for _ in range(2):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(listening.getsockname())
            fillers.append(sock)
        task = asyncio.ensure_future(
            loop.create_connection(RecordingProtocol, *listening.getsockname()))
        await settle()
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for sock in fillers:
            sock.close()
    await settle()


@pytest.mark.parametrize("factory", [RecordingProtocol, RecordingBuffered])
async def test_connect_accepted_socket(factory):
    loop = asyncio.get_running_loop()
    with listener() as listening:
        peer = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    with peer:
        peer.send(b"pon")
        transport, protocol = await loop.connect_accepted_socket(factory, accepted)
        await exchange(loop, transport, protocol, peer)
        assert protocol.data == b"ponpong"
    await poll(lambda: accepted.fileno() == -1)


async def test_connect_accepted_socket_errors():
    loop = asyncio.get_running_loop()
    with (
        socket.socket(type=socket.SOCK_DGRAM) as sock,
        pytest.raises(ValueError, match="A Stream Socket was expected"),
    ):
        await loop.connect_accepted_socket(RecordingProtocol, sock)
    with (
        socket.socket() as sock,
        pytest.raises(ValueError, match="ssl_handshake_timeout is only meaningful with ssl"),
    ):
        await loop.connect_accepted_socket(RecordingProtocol, sock, ssl_handshake_timeout=1)


async def test_two_transports_of_one_loop_talk():
    loop = asyncio.get_running_loop()
    servers = []
    server = await loop.create_server(
        lambda: servers.append(RecordingProtocol()) or servers[-1], "127.0.0.1", 0)
    transport, client = await loop.create_connection(
        RecordingProtocol, *server.sockets[0].getsockname())
    transport.write(b"x" * 5_000_000)
    await poll(lambda: servers)
    await servers[0].received(5_000_000)
    servers[0].transport.write(b"y" * 5_000_000)
    await client.received(5_000_000)
    await close(transport, client)
    await servers[0].called("connection_lost")
    server.close()
    await server.wait_closed()
