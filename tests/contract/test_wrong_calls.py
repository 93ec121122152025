"""Calls with arguments of a wrong kind say so, and take nothing with them."""
import asyncio
import gc
import socket
import ssl
import warnings

import pytest
from support import RecordingProtocol, listener

import zcloop


@pytest.mark.loops("asyncio", "zcloop")
@pytest.mark.parametrize(
    ("offset", "count", "error"),
    [(-1, None, ValueError), (0.5, None, TypeError), (0, -1, ValueError), (0, 0, ValueError),
     (0, "5", TypeError)],
)
async def test_sendfile(tmp_path, offset, count, error):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    loop = asyncio.get_running_loop()
    with listener() as listening:
        transport, _ = await loop.create_connection(
            asyncio.Protocol, *listening.getsockname())
        peer, _ = listening.accept()
    with peer, path.open("rb") as file, path.open() as text:
        with pytest.raises(error):
            await loop.sendfile(transport, file, offset, count)
        with pytest.raises(ValueError, match="binary mode"):
            await loop.sendfile(transport, text)
        assert await loop.sendfile(transport, file, 4, 3) == 3
        transport.close()
        assert peer.recv(100) == b"456"


@pytest.mark.loops("zcloop")
@pytest.mark.parametrize("read", ["read", "readexactly", "readview"])
@pytest.mark.parametrize("size", [1.5, 20001.0, 1e9, "3"])
async def test_a_size_that_is_no_integer(read, size):
    """Whatever is there, nothing of it is lost."""
    own, peer = socket.socketpair()
    with peer:
        peer.sendall(bytes(20_000) + b"end")
        reader, writer = await zcloop.open_connection(sock=own)
        for _ in range(2):      # also when something is in the reader already
            with pytest.raises(TypeError, match="integer"):
                await getattr(reader, read)(size)
            assert await reader.readexactly(1) == b"\0"
        assert await reader.readexactly(20_001) == bytes(19_998) + b"end"
        writer.close()
        await writer.wait_closed()


@pytest.mark.loops("zcloop")
@pytest.mark.parametrize("tls", [None, ssl.create_default_context()], ids=["plain", "tls"])
async def test_a_factory_that_returns_nothing(tls):
    with listener() as listening, warnings.catch_warnings():
        warnings.simplefilter("error")      # the socket is closed
        with pytest.raises(TypeError, match="factory returned None"):
            await asyncio.get_running_loop().create_connection(
                lambda: None, *listening.getsockname(), ssl=tls,
                server_hostname="localhost" if tls else None)
        gc.collect()
        peer, _ = listening.accept()
        with peer:
            assert peer.recv(1) == b""


@pytest.mark.parametrize("send", ["copy", "auto", "zerocopy"])
def test_a_closed_loop_keeps_no_connection(send):
    """The loop is still referenced; the peer sees the end once nobody has the transport."""
    loop = zcloop.new_event_loop(zcloop.Config(send=send))
    with listener() as listening:
        transport, protocol = loop.run_until_complete(
            loop.create_connection(RecordingProtocol, *listening.getsockname()))
        peer, _ = listening.accept()
    with peer:
        transport.write(b"last words")
        loop.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del transport, protocol
            gc.collect()
        assert peer.recv(100) == b"last words"
        assert peer.recv(100) == b""
