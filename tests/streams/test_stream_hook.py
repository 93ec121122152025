"""Unchanged asyncio programs on zcloop's loop get the fast reader, unless it is turned off."""
import asyncio
import socket
import sys

import pytest

import zcloop
from zcloop.fast_streams import StreamReaderProtocol, StreamWriter
from zcloop.reader import FILL_MIN, StreamReader


async def over_tcp(callback):
    server = await asyncio.start_server(callback, "127.0.0.1", 0)
    return server, await asyncio.open_connection(*server.sockets[0].getsockname())


async def over_unix(callback):
    server = await asyncio.start_unix_server(callback, f"\0zcloop-{id(callback)}")
    return server, await asyncio.open_unix_connection(server.sockets[0].getsockname())


async def over_given_socket(callback):
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, callback, loop=loop)
    await loop.connect_accepted_socket(lambda: protocol, theirs)
    return None, await asyncio.open_unix_connection(sock=ours)


async def converse(connect):
    """Large results both ways; the readers, writers and protocols that took part."""
    seen = []
    over = asyncio.get_running_loop().create_future()
    size = 4 * FILL_MIN

    async def serve(reader, writer):
        seen.append((type(reader), type(writer), type(writer._protocol)))
        writer.write(await reader.readexactly(size))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        over.set_result(None)

    server, (reader, writer) = await connect(serve)
    writer.write(b"x" * size)
    assert await reader.readexactly(size) == b"x" * size
    assert await reader.read() == b""
    seen.append((type(reader), type(writer._protocol)))
    filled = writer.get_extra_info("zcloop").bytes_filled
    writer.close()
    await writer.wait_closed()
    await over
    if server is not None:
        server.close()
        await server.wait_closed()
    return seen, filled


@pytest.mark.parametrize("connect", [over_tcp, over_unix, over_given_socket])
def test_plain_asyncio_is_fast(connect):
    seen, filled = zcloop.run(converse(connect))
    assert seen == [(StreamReader, StreamWriter, StreamReaderProtocol),
                    (StreamReader, StreamReaderProtocol)]
    assert filled > 0


@pytest.mark.parametrize("connect", [over_tcp, over_unix, over_given_socket])
def test_unless_it_is_turned_off(connect):
    seen, filled = zcloop.run(converse(connect), config=zcloop.Config(fast_streams=False))
    assert seen == [(asyncio.StreamReader, asyncio.StreamWriter, asyncio.StreamReaderProtocol),
                    (asyncio.StreamReader, asyncio.StreamReaderProtocol)]
    assert filled == 0


async def read_from_process():
    program = "import sys; sys.stdout.write('out' * 30000); sys.stderr.write('err')"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE)
    kinds = type(process.stdout), type(process.stderr)
    assert await process.communicate() == (b"out" * 30000, b"err")
    return kinds


@pytest.mark.parametrize("on", [True, False])
def test_process_pipes(on):
    kinds = zcloop.run(read_from_process(), config=zcloop.Config(fast_streams=on))
    assert kinds == ((StreamReader, StreamReader) if on
                     else (asyncio.StreamReader, asyncio.StreamReader))


def test_eager_tasks_read_no_bytes_out_of_order():
    """Handlers that run inside the loop's callbacks, where bytes of theirs may be under way."""
    if not hasattr(asyncio, "eager_task_factory"):
        pytest.skip("eager tasks are from Python 3.12 on")
    size = 4 * FILL_MIN

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)
        got = loop.create_future()

        async def serve(reader, writer):
            parts = [await reader.readexactly(n) for n in (1, size, 3, size)]
            got.set_result(b"".join(parts))
            writer.close()
            await writer.wait_closed()

        server, (reader, writer) = await over_tcp(serve)
        data = bytes(range(256)) * (2 * size // 256) + b"tail"
        writer.write(data)
        assert await got == data
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    zcloop.run(main())
