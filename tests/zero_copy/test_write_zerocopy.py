"""write_zerocopy: order, the lock on the buffer, and every mode that has to copy instead."""
import array
import asyncio
import contextlib
import mmap
import pathlib
import socket

import pytest
from support import (
    RecordingProtocol,
    assert_same,
    fill,
    link,
    listener,
    pattern,
    poll,
    recv_exactly,
    recv_to_end,
)

import zcloop

kinds = pytest.mark.parametrize("kind", ["tcp-client", "tcp-server", "unix-client"])
ours = pytest.mark.loops("zcloop", "zcloop-debug")
pytestmark = ours


def locked(buffer):
    try:
        buffer.append(0)
    except BufferError:
        return True
    buffer.pop()
    return False


def run(main, **settings):
    config = zcloop.Config(**{"zerocopy_threshold": 4096, **settings})
    with asyncio.Runner(loop_factory=lambda: zcloop.new_event_loop(config)) as runner:
        return runner.run(main)


# -- what is sent -------------------------------------------------------------------------------

@pytest.mark.parametrize("send", ["copy", "auto", "zerocopy"])
@pytest.mark.parametrize("kind", ["tcp-client", "unix-client"])
def test_in_order_with_everything_else(kind, send):
    """write, writelines and write_zerocopy of all sizes, with a peer that reads as it likes."""
    async def main():
        async with link(kind) as (transport, protocol, peer):
            loop = asyncio.get_running_loop()
            reading = asyncio.ensure_future(recv_to_end(peer))
            want, futures = bytearray(), []
            for number, size in enumerate([1, 100, 4095, 4096, 70_000, 300_000, 2_000_000] * 3):
                data = pattern(size, seed=number)
                want += data * 4
                transport.write(data)
                futures.append(transport.write_zerocopy(bytearray(data)))
                third = size // 3
                transport.writelines([data[:third], data[third:-third], memoryview(data)[-third:]]
                                     if third else [data])
                futures.append(transport.write_zerocopy(data))
                if number % 5 == 0:
                    await futures[-1]
            transport.close()
            assert_same(await reading, want)
            assert await asyncio.gather(*futures) == [None] * len(futures)
            await protocol.called("connection_lost")
            stats = transport.get_extra_info("zcloop")
            assert stats.bytes_sent == len(want)
            if send == "copy" or kind != "tcp-client":
                assert stats.zerocopy_sends == 0
            else:
                assert stats.zerocopy_sends > 0
            await poll(lambda: loop.zcloop_stats().zerocopy_outstanding == 0)
    run(main(), send=send)


@pytest.mark.parametrize("send", ["copy", "zerocopy"])
@pytest.mark.parametrize("buffer", [
    bytes(10_000), bytearray(10_000), memoryview(bytearray(20_000))[5000:15_000],
    array.array("i", range(5000)), memoryview(array.array("d", range(2000))).cast("B").cast("d"),
    memoryview(bytes(10_000)), b"", bytearray(), b"x"], ids=repr)
def test_every_kind_of_buffer(buffer, send):
    async def main():
        async with link() as (transport, _, peer):
            future = transport.write_zerocopy(buffer)
            raw = memoryview(buffer).tobytes()
            assert_same(await recv_exactly(peer, len(raw)), raw)
            assert await future is None
    run(main(), send=send)


def test_a_mapped_file():
    async def main():
        async with link() as (transport, _, peer):
            path = pathlib.Path(__file__)
            with path.open("rb") as file, \
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                future = transport.write_zerocopy(view)
                assert_same(await recv_exactly(peer, len(view)), path.read_bytes())
                await future
    run(main(), send="zerocopy")


async def test_what_is_refused():
    async with link() as (transport, protocol, _peer):
        with pytest.raises(TypeError):
            transport.write_zerocopy("text")
        with pytest.raises(TypeError):
            transport.write_zerocopy(None)
        with pytest.raises(BufferError):
            transport.write_zerocopy(memoryview(bytes(10))[::2])
        transport.write_eof()
        with pytest.raises(RuntimeError):
            transport.write_zerocopy(b"late")
        transport.close()
        await protocol.called("connection_lost")
        with pytest.raises(RuntimeError):
            transport.write_zerocopy(b"later")


async def test_what_is_lost_before_it_was_sent():
    """An error for each, and no complaint of an exception that nobody has looked at."""
    async with link() as (transport, protocol, _peer):
        fill(transport)
        buffer = bytearray(100)
        futures = [transport.write_zerocopy(buffer), transport.write_zerocopy(bytes(10**6))]
        assert locked(buffer)
        transport.abort()
        await protocol.called("connection_lost")
        futures.append(transport.write_zerocopy(b"too late"))
        for future in futures:
            with pytest.raises(ConnectionResetError):
                await future
        assert not locked(buffer)
        forgotten = transport.write_zerocopy(b"nobody waits")
        assert forgotten.done()
        del forgotten


# -- the lock -----------------------------------------------------------------------------------

@pytest.mark.parametrize("send", ["copy", "zerocopy"])
def test_locked_until_done(send):
    async def main():
        async with link() as (transport, _, peer):
            before = fill(transport)
            buffer = bytearray(pattern(500_000))
            future = transport.write_zerocopy(buffer)
            for _ in range(3):
                assert locked(buffer)
                assert not future.done()
                await asyncio.sleep(0)
            await recv_exactly(peer, before)
            assert_same(await recv_exactly(peer, 500_000), pattern(500_000))
            await future
            assert not locked(buffer)
    run(main(), send=send)


def test_done_without_anybody_else_s_help():
    """The completion wakes the loop itself: nothing else happens on it."""
    async def main():
        with listener() as listening:
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(
                RecordingProtocol, *listening.getsockname())
            peer, _ = listening.accept()
            with peer:
                future = transport.write_zerocopy(bytes(20_000))
                assert not future.done()
                assert transport.get_extra_info("zcloop").zerocopy_sends == 1
                assert len(peer.recv(20_000, socket.MSG_WAITALL)) == 20_000
                await future
                transport.close()
                await protocol.called("connection_lost")
    run(main(), send="zerocopy")


def test_reading_goes_on_meanwhile():
    """Completions and bytes in both directions at once: none is mistaken for another."""
    async def main():
        async def echo(reader, writer):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await zcloop.open_connection(*server.sockets[0].getsockname())
        for number in range(30):
            data = pattern(10_000 + 5000 * number, seed=number)
            buffer = bytearray(data)
            future = writer.write_zerocopy(buffer)
            assert_same(await reader.readexactly(len(data)), data)
            await future
            assert not locked(buffer)
        stats = writer.transport.get_extra_info("zcloop")
        assert stats.zerocopy_sends >= 30
        assert stats.zerocopy_completed == stats.zerocopy_sends
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
    run(main(), send="zerocopy")


# -- streams, TLS, other loops --------------------------------------------------------------------

@pytest.mark.loops("asyncio", "uvloop", "zcloop", "zcloop-debug")
async def test_streams_on_any_loop():
    async def take(reader, writer):
        got.append(await reader.read())
        writer.close()
        ended.set()
    got, ended = [], asyncio.Event()
    server = await zcloop.start_server(take, "127.0.0.1", 0)
    _, writer = await zcloop.open_connection(*server.sockets[0].getsockname())
    buffer = bytearray(pattern(3_000_000))
    future = writer.write_zerocopy(buffer)
    writer.write(b"behind")
    with pytest.raises(BufferError):
        writer.write_zerocopy(memoryview(b"1234")[::2])
    await future
    buffer[:] = bytes(len(buffer))
    buffer.clear()
    writer.close()
    await writer.wait_closed()
    await ended.wait()
    assert_same(got[0], pattern(3_000_000) + b"behind")
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("upgrade", [False, True])
def test_over_tls(contexts, upgrade):
    """Encrypting makes the copy: the buffer is free at once. What is encrypted may fly."""
    server_context, client_context = contexts

    async def main():
        async def take(reader, writer):
            if upgrade:
                await reader.readexactly(5)
                await writer.start_tls(server_context)
            got.append(await reader.read())
            writer.close()
            ended.set()
        got, ended = [], asyncio.Event()
        server = await asyncio.start_server(
            take, "127.0.0.1", 0, ssl=None if upgrade else server_context)
        _, writer = await zcloop.open_connection(
            *server.sockets[0].getsockname(),
            **{} if upgrade else {"ssl": client_context, "server_hostname": "localhost"})
        if upgrade:
            writer.write(b"hello")
            await writer.drain()
            await writer.start_tls(client_context, server_hostname="localhost")
        buffer = bytearray(pattern(3_000_000))
        future = writer.transport.write_zerocopy(buffer)
        assert future.done()
        buffer[:] = bytes(len(buffer))
        buffer.clear()
        await writer.write_zerocopy(b"behind")
        await writer.write_zerocopy(b"")
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()
        await ended.wait()
        assert_same(got[0], pattern(3_000_000) + b"behind")
        server.close()
        await server.wait_closed()
    run(main(), send="zerocopy")


# -- writelines -----------------------------------------------------------------------------------

@pytest.mark.parametrize("send", ["copy", "auto", "zerocopy"])
def test_writelines_of_thousands(send):
    """More pieces than one call can describe; the large ones go by themselves."""
    async def main():
        async with link() as (transport, protocol, peer):
            pieces = [pattern((n * 7919) % 9000, seed=n) for n in range(3000)]
            reading = asyncio.ensure_future(recv_to_end(peer))
            transport.writelines(pieces)
            transport.close()
            assert_same(await reading, b"".join(pieces))
            await protocol.called("connection_lost")
            stats = transport.get_extra_info("zcloop")
            large = sum(len(piece) >= 4096 for piece in pieces)
            if send == "zerocopy":
                assert stats.zerocopy_sends >= large
            else:
                assert stats.zerocopy_sends <= 1
            if send == "copy":
                assert stats.send_calls < len(pieces) / 4
    run(main(), send=send)


# -- a program that switches it off --------------------------------------------------------------

SO_ZEROCOPY = 60


@pytest.mark.parametrize("again", [False, True])
def test_switched_off_by_the_program(again):
    """Its futures are done, at the right time, and so are those of before and after."""
    def switch_on(turn):
        return turn % 4 == 0 or (again and turn > 4)

    async def main():
        async with link() as (transport, protocol, peer):
            sock = transport.get_extra_info("socket")
            reading = asyncio.ensure_future(recv_to_end(peer))
            want = bytearray(pattern(300_000))
            futures = [transport.write_zerocopy(bytes(want))]
            for turn in range(12):
                sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, switch_on(turn))
                data = bytearray(pattern(300_000, seed=turn))
                want += data
                future = transport.write_zerocopy(data)
                future.add_done_callback(lambda _, data=data: data.__setitem__(slice(None), b""))
                futures.append(future)
                if turn % 3:
                    await asyncio.sleep(0)
            await asyncio.gather(*futures)
            stats = transport.get_extra_info("zcloop")
            assert stats.zerocopy_sends > 0
            assert stats.zerocopy_fallback_unsupported > 0
            transport.close()
            assert_same(await reading, want)
            await protocol.called("connection_lost")
            assert asyncio.get_running_loop().zcloop_stats().zerocopy_outstanding == 0
    run(main(), send="zerocopy")


def test_a_write_in_many_sends_is_one_that_was_copied():
    async def main():
        async with link() as (transport, _, peer):
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            reading = asyncio.ensure_future(recv_to_end(peer))
            await transport.write_zerocopy(pattern(10_000))
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 0)
            before = transport.get_extra_info("zcloop")
            for _ in range(2):
                await transport.write_zerocopy(bytes(5_000_000))
            stats = transport.get_extra_info("zcloop")
            assert stats.send_calls - before.send_calls > 4
            assert stats.zerocopy_sends == before.zerocopy_sends
            assert stats.zerocopy_fallback_unsupported == 2
            transport.close()
            assert len(await reading) == 10_010_000
    run(main(), send="zerocopy")
