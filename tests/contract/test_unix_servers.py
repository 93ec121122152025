"""create_unix_server and create_unix_connection."""
import asyncio
import errno
import os
import pathlib
import socket
import sys

import pytest
from support import RecordingProtocol, known_gap, poll, recv_to_end, settle, unix_path


class Greeter(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")
        transport.close()


async def finish(server):
    server.close()
    await server.wait_closed()


async def hello(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.setblocking(False)
        assert await recv_to_end(sock) == b"hello"
    await settle()


@pytest.mark.parametrize("convert", [str, os.fsencode, pathlib.Path],
                         ids=["str", "bytes", "Path"])
async def test_path_types(convert):
    loop = asyncio.get_running_loop()
    with unix_path() as path:
        server = await loop.create_unix_server(Greeter, convert(path))
        assert server.sockets[0].getsockname() == path
        await hello(path)
        _transport, protocol = await loop.create_unix_connection(
            RecordingProtocol, convert(path))
        await protocol.called("connection_lost")
        assert protocol.data == b"hello"
        await finish(server)


@known_gap("uvloop", "create_unix_connection refuses abstract names")
@pytest.mark.parametrize("convert", [str.encode, str], ids=["bytes", "str"])
async def test_abstract_name(convert):
    loop = asyncio.get_running_loop()
    name = convert(f"\0zcloop-test-{os.getpid()}")
    server = await loop.create_unix_server(Greeter, name)
    await hello(name)
    _, protocol = await loop.create_unix_connection(RecordingProtocol, name)
    await protocol.called("connection_lost")
    assert protocol.data == b"hello"
    await finish(server)


async def test_stale_socket_file_is_replaced():
    with unix_path() as path:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(path)
        assert os.path.exists(path)
        server = await asyncio.get_running_loop().create_unix_server(Greeter, path)
        await hello(path)
        await finish(server)


async def test_other_file_is_not_replaced():
    with unix_path() as path:
        pathlib.Path(path).write_text("precious")
        with pytest.raises(OSError) as caught:
            await asyncio.get_running_loop().create_unix_server(Greeter, path)
        assert caught.value.errno == errno.EADDRINUSE
        assert repr(path) in str(caught.value)
        assert pathlib.Path(path).read_text() == "precious"


async def test_missing_folder():
    with unix_path() as path, pytest.raises(FileNotFoundError):
        await asyncio.get_running_loop().create_unix_server(Greeter, path + "/no/such")


async def test_path_too_long():
    with pytest.raises(OSError, match="too long"):
        await asyncio.get_running_loop().create_unix_server(Greeter, "/tmp/" + "x" * 200)


async def test_socket_file_after_close():
    """3.13 removes it (cleanup_socket), earlier versions leave it."""
    with unix_path() as path:
        server = await asyncio.get_running_loop().create_unix_server(Greeter, path)
        await finish(server)
        assert os.path.exists(path) == (sys.version_info < (3, 13))


@pytest.mark.skipif(sys.version_info < (3, 13), reason="cleanup_socket= is new in 3.13")
@pytest.mark.parametrize("value", [True, False])
async def test_cleanup_socket(value):
    with unix_path() as path:
        server = await asyncio.get_running_loop().create_unix_server(
            Greeter, path, cleanup_socket=value)
        await finish(server)
        assert os.path.exists(path) is not value


@pytest.mark.skipif(sys.version_info < (3, 13), reason="cleanup_socket= is new in 3.13")
async def test_a_socket_file_of_somebody_else_is_not_removed():
    with unix_path() as path:
        server = await asyncio.get_running_loop().create_unix_server(Greeter, path)
        os.unlink(path)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(path)
            await finish(server)
            assert os.path.exists(path)


async def test_sock():
    with unix_path() as path:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(path)
        server = await asyncio.get_running_loop().create_unix_server(Greeter, sock=sock)
        await hello(path)
        await finish(server)
        sock.close()


async def test_server_argument_errors():
    loop = asyncio.get_running_loop()
    with (
        socket.socket(socket.AF_UNIX) as sock,
        pytest.raises(ValueError, match="path and sock can not be specified"),
    ):
        await loop.create_unix_server(Greeter, "/tmp/x", sock=sock)
    with pytest.raises(ValueError, match="path was not specified"):
        await loop.create_unix_server(Greeter)
    with (
        socket.socket() as sock,
        pytest.raises(ValueError, match="A UNIX Domain Stream Socket was expected"),
    ):
        await loop.create_unix_server(Greeter, sock=sock)
    with pytest.raises(TypeError, match="ssl"):
        await loop.create_unix_server(Greeter, "/tmp/x", ssl=True)


async def test_connection_argument_errors():
    loop = asyncio.get_running_loop()
    with (
        socket.socket(socket.AF_UNIX) as sock,
        pytest.raises(ValueError, match="path and sock can not be specified"),
    ):
        await loop.create_unix_connection(Greeter, "/tmp/x", sock=sock)
    with pytest.raises(ValueError, match="no path and sock were specified"):
        await loop.create_unix_connection(Greeter)
    with (
        socket.socket() as sock,
        pytest.raises(ValueError, match="A UNIX Domain Stream Socket was expected"),
    ):
        await loop.create_unix_connection(Greeter, sock=sock)
    with pytest.raises(ValueError, match="server_hostname is only meaningful with ssl"):
        await loop.create_unix_connection(Greeter, "/tmp/x", server_hostname="x")
    with pytest.raises(ValueError, match="server_hostname when using ssl"):
        await loop.create_unix_connection(Greeter, "/tmp/x", ssl=True)


async def test_connection_errors():
    loop = asyncio.get_running_loop()
    with unix_path() as path:
        with pytest.raises(FileNotFoundError):
            await loop.create_unix_connection(Greeter, path)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path)
        with pytest.raises(ConnectionRefusedError):
            await loop.create_unix_connection(Greeter, path)


async def test_connection_by_sock():
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    with right:
        right.setblocking(False)
        transport, protocol = await loop.create_unix_connection(RecordingProtocol, sock=left)
        transport.write(b"ping")
        assert await loop.sock_recv(right, 10) == b"ping"
        right.send(b"pong")
        await protocol.received(4)
        transport.close()
        await protocol.called("connection_lost")
    await poll(lambda: left.fileno() == -1)
