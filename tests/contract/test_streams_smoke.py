"""asyncio's own streams on top of the loop's transports."""
import asyncio

import pytest
from support import assert_same, pattern, settle


async def conversation(handler, **kwargs):
    """(server, reader, writer) with `handler` on the other side."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0, **kwargs)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), **kwargs)
    return server, reader, writer


async def hang_up(server, writer):
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    await settle()


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_echo_of_many_sizes():
    server, reader, writer = await conversation(echo)
    for size in 1, 100, 65536, 1_000_000, 5_000_000:
        data = pattern(size, size)
        writer.write(data)
        assert_same(await reader.readexactly(size), data)
    writer.write_eof()
    assert await reader.read() == b""
    assert reader.at_eof()
    await hang_up(server, writer)


async def test_lines():
    server, reader, writer = await conversation(echo)
    writer.writelines(b"line %d\n" % n for n in range(1000))
    for n in range(1000):
        assert await reader.readline() == b"line %d\n" % n
    writer.write(b"a;b;;c")
    assert await reader.readuntil(b";") == b"a;"
    assert await reader.readuntil(b";;") == b"b;;"
    writer.write_eof()
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await reader.readuntil(b"!")
    assert caught.value.partial == b"c"
    await hang_up(server, writer)


async def test_limit():
    server, reader, writer = await conversation(echo, limit=100)
    writer.write(b"x" * 500 + b"\n")
    with pytest.raises(ValueError, match="limit"):
        await reader.readline()
    await hang_up(server, writer)


async def test_incomplete_read():
    async def short(reader, writer):
        writer.write(b"short")
        writer.close()
    server, reader, writer = await conversation(short)
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await reader.readexactly(10)
    assert (caught.value.partial, caught.value.expected) == (b"short", 10)
    await hang_up(server, writer)


async def test_cancelled_read_loses_nothing():
    server, reader, writer = await conversation(echo)
    data = pattern(100_000)
    for n in range(0, len(data), 10_000):
        task = asyncio.ensure_future(reader.readexactly(len(data)))
        writer.write(data[n:n + 10_000])
        await settle(2)
        if n + 10_000 < len(data):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert_same(await task, data)
    await hang_up(server, writer)


async def test_drain_waits_for_a_slow_reader():
    go, ended, sizes = asyncio.Event(), asyncio.Event(), []

    async def slow(reader, writer):
        await go.wait()
        while data := await reader.read(1 << 20):
            sizes.append(len(data))
        writer.close()
        ended.set()
    server, _, writer = await conversation(slow)
    writer.write(b"x" * 30_000_000)
    task = asyncio.ensure_future(writer.drain())
    await settle()
    assert not task.done()
    go.set()
    await task
    await hang_up(server, writer)
    await ended.wait()      # asyncio of 3.11 logs a handler that the loop's end cancels
    assert sum(sizes) == 30_000_000


async def test_many_at_once():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()

    async def client(n):
        reader, writer = await asyncio.open_connection(*address)
        for size in range(1, 30):
            data = pattern(size * n, n)
            writer.write(data)
            assert_same(await reader.readexactly(len(data)), data)
        writer.close()
        await writer.wait_closed()
    await asyncio.gather(*map(client, range(40)))
    server.close()
    await server.wait_closed()
    await settle()
