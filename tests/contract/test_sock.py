"""sock_* coroutines, add_reader and add_writer."""
import asyncio
import socket

import pytest
from support import assert_same, known_gap, link, listener, pattern, recv_exactly, settle


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        yield left, right


@pytest.fixture
def datagrams():
    """Two bound UDP sockets."""
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as two:
        for sock in one, two:
            sock.setblocking(False)
            sock.bind(("127.0.0.1", 0))
        yield one, two


async def test_recv_and_sendall(pair):
    loop = asyncio.get_running_loop()
    left, right = pair
    task = asyncio.ensure_future(loop.sock_recv(left, 100))
    await settle()
    await loop.sock_sendall(right, b"hello")
    assert await task == b"hello"
    right.close()
    assert await loop.sock_recv(left, 100) == b""


async def test_recv_into(pair):
    loop = asyncio.get_running_loop()
    left, right = pair
    buffer = bytearray(10)
    task = asyncio.ensure_future(loop.sock_recv_into(left, buffer))
    await settle()
    right.send(b"hello")
    assert await task == 5
    assert buffer == b"hello" + bytes(5)


async def test_sendall_larger_than_the_socket_buffer(pair):
    loop = asyncio.get_running_loop()
    data = pattern(4_000_000)
    task = asyncio.ensure_future(loop.sock_sendall(pair[0], data))
    assert_same(await recv_exactly(pair[1], len(data)), data)
    assert await task is None


async def test_cancelled_recv_takes_no_data(pair):
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(loop.sock_recv(pair[0], 10))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pair[1].send(b"kept")
    assert await loop.sock_recv(pair[0], 10) == b"kept"


async def test_connect_and_accept():
    loop = asyncio.get_running_loop()
    with listener() as listening, socket.socket() as client:
        listening.setblocking(False)
        client.setblocking(False)
        task = asyncio.ensure_future(loop.sock_accept(listening))
        await loop.sock_connect(client, listening.getsockname())
        sock, address = await task
        with sock:
            assert sock.gettimeout() == 0
            assert address == client.getsockname()
            await loop.sock_sendall(client, b"x")
            assert await loop.sock_recv(sock, 1) == b"x"


async def test_connect_refused():
    loop = asyncio.get_running_loop()
    with listener() as sock:
        address = sock.getsockname()
    with socket.socket() as client:
        client.setblocking(False)
        with pytest.raises(ConnectionRefusedError):
            await loop.sock_connect(client, address)


@known_gap("uvloop", "not implemented")
async def test_recvfrom_and_sendto(datagrams):
    loop = asyncio.get_running_loop()
    one, two = datagrams
    task = asyncio.ensure_future(loop.sock_recvfrom(two, 100))
    await settle()
    assert await loop.sock_sendto(one, b"datagram", two.getsockname()) == 8
    assert await task == (b"datagram", one.getsockname())
    one.sendto(b"", two.getsockname())
    assert await loop.sock_recvfrom(two, 100) == (b"", one.getsockname())


@known_gap("uvloop", "not implemented")
async def test_recvfrom_into(datagrams):
    loop = asyncio.get_running_loop()
    one, two = datagrams
    buffer = bytearray(10)
    one.sendto(b"hello", two.getsockname())
    assert await loop.sock_recvfrom_into(two, buffer) == (5, one.getsockname())
    one.sendto(b"world", two.getsockname())
    assert await loop.sock_recvfrom_into(two, buffer, 3) == (3, one.getsockname())
    assert buffer == b"worlo" + bytes(5)


@known_gap("uvloop", "not implemented")
async def test_cancelled_recvfrom_takes_no_data(datagrams):
    loop = asyncio.get_running_loop()
    one, two = datagrams
    task = asyncio.ensure_future(loop.sock_recvfrom(two, 100))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    one.sendto(b"kept", two.getsockname())
    assert (await loop.sock_recvfrom(two, 100))[0] == b"kept"


async def test_blocking_sockets_are_refused_in_debug_mode():
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    with socket.socket() as sock:
        for call in (loop.sock_recv(sock, 1), loop.sock_recv_into(sock, bytearray(1)),
                     loop.sock_sendall(sock, b"x"), loop.sock_accept(sock),
                     loop.sock_connect(sock, ("127.0.0.1", 1))):
            with pytest.raises(ValueError, match="non-blocking"):
                await call


async def test_add_reader(pair):
    loop = asyncio.get_running_loop()
    left, right = pair
    seen = []
    loop.add_reader(left, lambda *args: seen.append((args, left.recv(10))), 1, 2)
    right.send(b"x")
    await settle()
    assert seen == [((1, 2), b"x")]
    loop.add_reader(left.fileno(), lambda: seen.append(left.recv(10)))     # replaces
    right.send(b"y")
    await settle()
    assert seen[1:] == [b"y"]
    loop.remove_reader(left)
    right.send(b"z")
    await settle()
    assert len(seen) == 2


@known_gap("uvloop", "remove_reader and remove_writer return None")
async def test_removal_says_whether_there_was_one(pair):
    loop = asyncio.get_running_loop()
    loop.add_reader(pair[0], lambda: None)
    assert loop.remove_reader(pair[0]) is True
    assert loop.remove_reader(pair[0]) is False
    assert loop.remove_writer(pair[0]) is False
    loop.add_writer(pair[0], lambda: None)
    assert loop.remove_reader(pair[0]) is False
    assert loop.remove_writer(pair[0]) is True
    assert loop.remove_writer(pair[0]) is False


async def test_add_writer(pair):
    loop = asyncio.get_running_loop()
    called = loop.create_future()
    loop.add_writer(pair[0], lambda: called.done() or called.set_result(None))
    await called
    loop.remove_writer(pair[0])


@pytest.mark.parametrize("kind", ["tcp-client", "unix-server"])
async def test_a_transports_descriptor_is_refused(kind):
    loop = asyncio.get_running_loop()
    async with link(kind) as (transport, protocol, peer):
        fd = transport.get_extra_info("socket").fileno()
        for call in loop.add_reader, loop.add_writer:
            with pytest.raises(RuntimeError, match="is used by transport"):
                call(fd, lambda: None)
        for call in loop.remove_reader, loop.remove_writer:
            with pytest.raises(RuntimeError, match="is used by transport"):
                call(fd)
        peer.send(b"undisturbed")
        await protocol.received(11)


@pytest.mark.parametrize("call", [
    lambda loop, sock: loop.sock_recv(sock, 1),
    lambda loop, sock: loop.sock_recv_into(sock, bytearray(1))], ids=["recv", "recv_into"])
async def test_receiving_from_a_transports_descriptor_is_refused(call):
    loop = asyncio.get_running_loop()
    async with link() as (transport, _, _):
        same = socket.socket(fileno=transport.get_extra_info("socket").fileno())
        try:
            async def receive():
                return await call(loop, same)
            task = asyncio.ensure_future(receive())
            await settle()
            task.cancel()               # one that isn't refused would wait for ever
            result, = await asyncio.gather(task, return_exceptions=True)
        finally:
            same.detach()
    assert isinstance(result, RuntimeError)
    assert "is used by transport" in str(result)


async def test_a_descriptor_is_free_after_its_transport():
    """The number is soon used again; the loop must not remember the transport."""
    loop = asyncio.get_running_loop()
    async with link() as (transport, protocol, _):
        transport.close()
        await protocol.called("connection_lost")
    await settle()
    left, right = socket.socketpair()
    with left, right:
        loop.add_reader(left, lambda: None)
        loop.add_reader(right, lambda: None)
        loop.remove_reader(left)
        loop.remove_reader(right)
