"""loop.sendfile and loop.sock_sendfile."""
import asyncio
import io
import socket

import pytest
from support import (
    RecordingProtocol,
    fill,
    known_gap,
    link,
    pattern,
    recv_exactly,
    recv_to_end,
    settle,
)

SIZE = 3_000_000
DATA = pattern(SIZE)
kinds = pytest.mark.parametrize("kind", ["tcp-client", "unix-server"])
pytestmark = [known_gap("uvloop", "not implemented", run=False)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        yield file


@pytest.fixture
def large(tmp_path):
    """A sparse file, larger than what socket buffers take."""
    with (tmp_path / "large").open("w+b") as file:
        file.truncate(100_000_000)
        yield file


@kinds
@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize("offset, count, expected", [
    (0, None, DATA), (1000, None, DATA[1000:]), (0, 5000, DATA[:5000]),
    (1234, 500_000, DATA[1234:501_234]), (SIZE - 10, 100, DATA[-10:]), (SIZE, None, b""),
    (SIZE + 10, None, b"")])
async def test_offset_and_count(kind, file, offset, count, expected, fallback):
    loop = asyncio.get_running_loop()
    async with link(kind) as (transport, _, peer):
        task = asyncio.ensure_future(
            loop.sendfile(transport, file, offset, count, fallback=fallback))
        assert await recv_exactly(peer, len(expected)) == expected
        assert await task == len(expected)
        assert file.tell() == (offset + len(expected) if expected else file.tell())
        transport.write(b"end")
        assert await recv_exactly(peer, 3) == b"end"


@kinds
async def test_order_with_earlier_writes(kind, file):
    loop = asyncio.get_running_loop()
    async with link(kind) as (transport, _, peer):
        sent = fill(transport)
        transport.write(b"header")
        task = asyncio.ensure_future(loop.sendfile(transport, file))
        assert (await recv_exactly(peer, sent + 6))[-6:] == b"header"
        assert await recv_exactly(peer, SIZE) == DATA
        assert await task == SIZE


@kinds
async def test_object_without_a_descriptor(kind):
    loop = asyncio.get_running_loop()
    async with link(kind) as (transport, _, peer):
        with pytest.raises(asyncio.SendfileNotAvailableError):
            await loop.sendfile(transport, io.BytesIO(DATA), fallback=False)
        task = asyncio.ensure_future(loop.sendfile(transport, io.BytesIO(DATA), 7, 2_000_000))
        assert await recv_exactly(peer, 2_000_000) == DATA[7:2_000_007]
        assert await task == 2_000_000


@kinds
async def test_closing_transport(kind, file):
    loop = asyncio.get_running_loop()
    async with link(kind) as (transport, _protocol, _):
        transport.close()
        with pytest.raises(RuntimeError, match="Transport is closing"):
            await loop.sendfile(transport, file)


@kinds
async def test_peer_closing_midway(kind, large):
    loop = asyncio.get_running_loop()
    async with link(kind) as (transport, protocol, peer):
        task = asyncio.ensure_future(loop.sendfile(transport, large))
        await recv_exactly(peer, 100_000)
        peer.close()
        with pytest.raises(ConnectionError):
            await task
        await protocol.called("connection_lost")


@kinds
async def test_reading_goes_on_afterwards(kind, file):
    loop = asyncio.get_running_loop()
    async with link(kind) as (transport, protocol, peer):
        task = asyncio.ensure_future(loop.sendfile(transport, file))
        assert await recv_exactly(peer, SIZE) == DATA
        await task
        assert transport.get_protocol() is protocol
        peer.send(b"thanks")
        await protocol.received(6)


async def test_text_file_and_wrong_numbers(tmp_path):
    loop = asyncio.get_running_loop()
    path = tmp_path / "text"
    path.write_text("x" * 100)
    left, right = socket.socketpair()
    with left, right, path.open() as text, path.open("rb") as file:
        left.setblocking(False)
        with pytest.raises(ValueError, match="binary mode"):
            await loop.sock_sendfile(left, text)
        for count in 0, -1:
            with pytest.raises(ValueError, match="count must be a positive integer"):
                await loop.sock_sendfile(left, file, 0, count)
        with pytest.raises(TypeError, match="count must be a positive integer"):
            await loop.sock_sendfile(left, file, 0, "1")
        with pytest.raises(ValueError, match="offset must be a non-negative integer"):
            await loop.sock_sendfile(left, file, -1)
        with pytest.raises(TypeError, match="offset must be a non-negative integer"):
            await loop.sock_sendfile(left, file, "0")
        with socket.socket(type=socket.SOCK_DGRAM) as datagram:
            datagram.setblocking(False)
            with pytest.raises(ValueError, match="only SOCK_STREAM"):
                await loop.sock_sendfile(datagram, file)


@pytest.mark.parametrize("fallback", [None, False, True])
async def test_sock_sendfile(file, fallback):
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        kwargs = {} if fallback is None else {"fallback": fallback}
        task = asyncio.ensure_future(loop.sock_sendfile(left, file, 10, 1_000_000, **kwargs))
        assert await recv_exactly(right, 1_000_000) == DATA[10:1_000_010]
        assert await task == 1_000_000
        assert file.tell() == 1_000_010


async def test_sock_sendfile_of_an_object_without_a_descriptor():
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        with pytest.raises(asyncio.SendfileNotAvailableError):
            await loop.sock_sendfile(left, io.BytesIO(DATA), fallback=False)
        task = asyncio.ensure_future(loop.sock_sendfile(left, io.BytesIO(DATA)))
        assert await recv_exactly(right, SIZE) == DATA
        assert await task == SIZE


async def test_cancelled_sock_sendfile(file):
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        task = asyncio.ensure_future(loop.sock_sendfile(left, file))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left.close()
        received = await recv_to_end(right)
        assert 0 < len(received) < SIZE
        assert DATA.startswith(received)


async def test_slow_reader_holds_the_sender_back(file):
    """Back-pressure: what the peer doesn't take isn't read from the file into memory."""
    loop = asyncio.get_running_loop()
    async with link("unix-client", RecordingProtocol) as (transport, _, peer):
        task = asyncio.ensure_future(loop.sendfile(transport, file))
        await settle(10)
        assert not task.done()
        assert transport.get_write_buffer_size() < 1_000_000
        assert await recv_exactly(peer, SIZE) == DATA
        assert await task == SIZE
