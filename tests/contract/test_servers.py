"""create_server and the Server object."""
import asyncio
import errno
import socket
import sys

import pytest
from support import RecordingProtocol, known_gap, listener, poll, recv_to_end, settle

NEW_SERVER = sys.version_info >= (3, 12, 1)     # wait_closed() waits for connections


def connect(server, n=0):
    sock = socket.socket(server.sockets[n].family)
    try:
        sock.connect(server.sockets[n].getsockname())
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


async def finish(server):
    server.close()
    await server.wait_closed()


class Greeter(asyncio.Protocol):
    """Says hello and hangs up: one accepted connection, seen from the other end."""
    def connection_made(self, transport):
        transport.write(b"hello")
        transport.close()


async def hello(server, n=0):
    with connect(server, n) as sock:
        assert await recv_to_end(sock) == b"hello"
    await settle()


async def test_port_zero_and_sockets():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Greeter, "127.0.0.1", 0)
    sock, = server.sockets
    assert sock.getsockname()[1] > 0
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    assert server.get_loop() is loop
    assert server.is_serving()
    for _ in range(3):
        await hello(server)
    await finish(server)
    assert not server.is_serving()
    assert list(server.sockets) == []


@known_gap("uvloop", "its Server is its own type, and sockets a list")
async def test_type():
    server = await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0)
    await finish(server)
    assert isinstance(server, asyncio.AbstractServer)
    assert isinstance(server, asyncio.base_events.Server)
    assert isinstance(server.sockets, tuple)


@pytest.mark.parametrize(
    "hosts", [["127.0.0.1", "127.0.0.2"], ("127.0.0.1",), ["127.0.0.1", "::1"]])
async def test_several_hosts(hosts):
    server = await asyncio.get_running_loop().create_server(Greeter, hosts, 0)
    assert len(server.sockets) == len(hosts)
    assert sorted(s.getsockname()[0] for s in server.sockets) == sorted(hosts)
    for n in range(len(hosts)):
        await hello(server, n)
    await finish(server)


async def test_no_host_means_every_interface():
    server = await asyncio.get_running_loop().create_server(Greeter, None, 0)
    assert {s.family for s in server.sockets} == {socket.AF_INET, socket.AF_INET6}
    for sock in server.sockets:
        if sock.family == socket.AF_INET6:
            assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
    await finish(server)


async def test_family():
    server = await asyncio.get_running_loop().create_server(
        Greeter, "localhost", 0, family=socket.AF_INET)
    assert [s.family for s in server.sockets] == [socket.AF_INET]
    await finish(server)


async def test_sock():
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = await asyncio.get_running_loop().create_server(Greeter, sock=sock)
    assert server.sockets[0].getsockname() == sock.getsockname()
    await hello(server)
    await finish(server)
    sock.close()


async def test_sock_is_closed_with_the_server():
    sock = listener()
    server = await asyncio.get_running_loop().create_server(Greeter, sock=sock)
    await finish(server)
    await poll(lambda: sock.fileno() == -1)


async def test_argument_errors():
    loop = asyncio.get_running_loop()
    with (
        listener() as sock,
        pytest.raises(ValueError, match="host/port and sock can not be specified"),
    ):
        await loop.create_server(Greeter, "127.0.0.1", 0, sock=sock)
    with pytest.raises(ValueError, match="Neither host/port nor sock were specified"):
        await loop.create_server(Greeter)
    with pytest.raises(TypeError, match="ssl"):
        await loop.create_server(Greeter, "127.0.0.1", 0, ssl=True)
    with pytest.raises(ValueError, match="ssl_handshake_timeout is only meaningful with ssl"):
        await loop.create_server(Greeter, "127.0.0.1", 0, ssl_handshake_timeout=1)
    with pytest.raises(ValueError, match="ssl_shutdown_timeout is only meaningful with ssl"):
        await loop.create_server(Greeter, "127.0.0.1", 0, ssl_shutdown_timeout=1)


async def test_datagram_socket_is_refused():
    with (
        socket.socket(type=socket.SOCK_DGRAM) as sock,
        pytest.raises(ValueError, match="A Stream Socket was expected"),
    ):
        await asyncio.get_running_loop().create_server(Greeter, sock=sock)


async def test_port_in_use():
    with listener() as sock, pytest.raises(OSError) as caught:
        await asyncio.get_running_loop().create_server(Greeter, *sock.getsockname())
    assert caught.value.errno == errno.EADDRINUSE
    assert "address already in use" in str(caught.value).lower()


async def test_second_of_two_ports_in_use_leaves_nothing_open():
    """The first host was bound already: it must be free again."""
    loop = asyncio.get_running_loop()
    with listener() as sock:
        port = sock.getsockname()[1]
        with pytest.raises(OSError):
            await loop.create_server(Greeter, ["127.0.0.2", "127.0.0.1"], port)
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", port))


async def test_address_of_another_machine():
    with pytest.raises(OSError) as caught:
        await asyncio.get_running_loop().create_server(Greeter, "192.0.2.1", 0)
    # 3.13 skips addresses that are not there, and finds none left.
    assert (caught.value.errno == errno.EADDRNOTAVAIL
            or "could not bind on any address" in str(caught.value))


@pytest.mark.parametrize("value", [None, True, False])
async def test_reuse_address(value):
    server = await asyncio.get_running_loop().create_server(
        Greeter, "127.0.0.1", 0, reuse_address=value)
    sock, = server.sockets
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == (value is not False)
    await finish(server)


async def test_reuse_port():
    loop = asyncio.get_running_loop()
    first = await loop.create_server(Greeter, "127.0.0.1", 0, reuse_port=True)
    second = await loop.create_server(
        Greeter, *first.sockets[0].getsockname(), reuse_port=True)
    assert second.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 1
    await finish(first)
    await hello(second)
    await finish(second)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="keep_alive= is new in 3.13")
@known_gap("uvloop", "create_server has no keep_alive")
async def test_keep_alive():
    server = await asyncio.get_running_loop().create_server(
        Greeter, "127.0.0.1", 0, keep_alive=True)
    assert server.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    await finish(server)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="keep_alive= is known from 3.13 on")
async def test_keep_alive_is_unknown():
    with pytest.raises(TypeError, match="keep_alive"):
        await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0, keep_alive=True)


async def test_backlog_of_one_serves_many():
    server = await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0, backlog=1)
    for _ in range(20):
        await hello(server)
    await finish(server)


async def test_a_burst_of_connections_is_accepted_in_one_go():
    made = []
    server = await asyncio.get_running_loop().create_server(
        lambda: made.append(RecordingProtocol()) or made[-1], "127.0.0.1", 0, backlog=100)
    peers = [connect(server) for _ in range(50)]
    await poll(lambda: len(made) == 50 and all(p.transport for p in made))
    for n, peer in enumerate(peers):
        peer.send(b"%d" % n)
    for protocol in made:
        await protocol.received(1)
    assert sorted(int(p.data) for p in made) == list(range(50))
    for peer in peers:
        peer.close()
    for protocol in made:
        await protocol.called("connection_lost")
    await finish(server)


async def test_start_serving_false():
    server = await asyncio.get_running_loop().create_server(
        Greeter, "127.0.0.1", 0, start_serving=False)
    assert not server.is_serving()
    assert len(server.sockets) == 1
    with socket.socket() as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(server.sockets[0].getsockname())
    await server.start_serving()
    assert server.is_serving()
    await server.start_serving()
    await hello(server)
    await finish(server)


async def test_close_before_serving():
    server = await asyncio.get_running_loop().create_server(
        Greeter, "127.0.0.1", 0, start_serving=False)
    await finish(server)
    assert list(server.sockets) == []


async def test_serve_forever():
    server = await asyncio.get_running_loop().create_server(
        Greeter, "127.0.0.1", 0, start_serving=False)
    task = asyncio.ensure_future(server.serve_forever())
    await poll(server.is_serving)
    await hello(server)
    with pytest.raises(RuntimeError, match="already being awaited"):
        await server.serve_forever()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not server.is_serving()
    assert list(server.sockets) == []
    with pytest.raises(RuntimeError, match="is closed"):
        await server.serve_forever()


@known_gap("uvloop", "serve_forever goes on waiting after close", run=False)
async def test_closing_ends_serve_forever():
    server = await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0)
    task = asyncio.ensure_future(server.serve_forever())
    await settle()
    server.close()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.wait_closed()


async def test_async_with():
    async with await asyncio.get_running_loop().create_server(
            Greeter, "127.0.0.1", 0) as server:
        assert server.is_serving()
        await hello(server)
    assert not server.is_serving()


async def test_close_is_idempotent_and_refuses_new_connections():
    server = await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    server.close()
    server.close()
    await server.wait_closed()
    await settle()
    with socket.socket() as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(address)


async def accepted(loop, **kwargs):
    """A server, one protocol it made, and the client's socket."""
    made = []
    server = await loop.create_server(
        lambda: made.append(RecordingProtocol()) or made[-1], "127.0.0.1", 0, **kwargs)
    peer = connect(server)
    await poll(lambda: made and made[0].transport)
    return server, made[0], peer


async def test_connections_outlive_the_server():
    server, protocol, peer = await accepted(asyncio.get_running_loop())
    with peer:
        server.close()
        await settle()
        peer.send(b"still here")
        await protocol.received(10)
    await protocol.called("connection_lost")
    await server.wait_closed()


@known_gap("uvloop", "wait_closed returns at once after close", when=NEW_SERVER)
async def test_wait_closed_waits_for_connections():
    server, protocol, peer = await accepted(asyncio.get_running_loop())
    with peer:
        server.close()
        waiter = asyncio.ensure_future(server.wait_closed())
        await settle()
        waited = not waiter.done()
    await protocol.called("connection_lost")
    await waiter
    assert waited is NEW_SERVER


async def test_wait_closed_of_a_serving_server_waits_for_its_close():
    if not NEW_SERVER:
        pytest.skip("before 3.12.1 wait_closed of a server without connections returns at once")
    server = await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0)
    waiter = asyncio.ensure_future(server.wait_closed())
    await settle()
    assert not waiter.done()
    server.close()
    await waiter


@pytest.mark.skipif(sys.version_info < (3, 13), reason="close_clients is new in 3.13")
@known_gap("uvloop", "its Server has no close_clients")
async def test_close_clients():
    server, protocol, peer = await accepted(asyncio.get_running_loop())
    with peer:
        protocol.transport.write(b"last")
        server.close()
        server.close_clients()
        assert await recv_to_end(peer) == b"last"
        await protocol.called("connection_lost")
        await server.wait_closed()


@pytest.mark.skipif(sys.version_info < (3, 13), reason="abort_clients is new in 3.13")
@known_gap("uvloop", "its Server has no abort_clients")
async def test_abort_clients():
    server, protocol, peer = await accepted(asyncio.get_running_loop())
    with peer:
        protocol.transport.write(b"x" * 20_000_000)
        server.close()
        server.close_clients()
        await settle()
        assert "connection_lost" not in protocol.calls
        server.abort_clients()
        await protocol.called("connection_lost")
        await server.wait_closed()


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="3.13 has these methods")
async def test_no_methods_of_a_later_version():
    server = await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0)
    assert not hasattr(server, "close_clients")
    assert not hasattr(server, "abort_clients")
    await finish(server)


async def test_sockets_are_read_only_views():
    server = await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0)
    sock, = server.sockets
    assert sock.fileno() > 0
    assert sock.family == socket.AF_INET
    assert sock.type == socket.SOCK_STREAM
    with pytest.raises((AttributeError, TypeError)):
        sock.accept()
    await finish(server)


async def test_server_repr():
    server = await asyncio.get_running_loop().create_server(Greeter, "127.0.0.1", 0)
    assert "Server" in repr(server)
    await finish(server)


@known_gap("asyncio", "leaves the connection open until it is collected", run=False)
@known_gap("uvloop", "leaves the connection open", run=False)
async def test_protocol_factory_that_raises(loop_errors):
    """One failed connection is reported and closed; the server goes on."""
    fail = [True]

    def factory():
        if fail.pop() if fail else False:
            raise ZeroDivisionError("factory")
        return Greeter()
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    with connect(server) as sock:
        assert await recv_to_end(sock) == b""
        assert isinstance(loop_errors.pop()["exception"], ZeroDivisionError)
    await hello(server)
    await finish(server)


def test_no_descriptor_stays_open_when_the_loop_closes_with_a_server(loop_factory):
    loop = loop_factory()
    server = loop.run_until_complete(loop.create_server(Greeter, "127.0.0.1", 0))
    server.close()
    loop.run_until_complete(server.wait_closed())
    loop.close()
