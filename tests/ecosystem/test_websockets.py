"""The websockets library, client and server, on the running loop: messages, fragments, compression,
pings, close codes, back-pressure, TLS, unix sockets, and the end of a server."""
import asyncio

import pytest
import websockets
from support import assert_same, pattern, poll, unix_path
from websockets.asyncio.client import connect, unix_connect
from websockets.asyncio.server import serve, unix_serve

LARGE = 8 * 1024 * 1024
UNLIMITED = {"max_size": None}


async def echo(ws):
    async for message in ws:
        await ws.send(message)


def url_of(server, scheme="ws"):
    return f"{scheme}://%s:%d" % server.sockets[0].getsockname()


async def exchange(ws):
    for message in "", "text", "zürich " * 20_000, b"", pattern(1000), pattern(LARGE):
        await ws.send(message)
        answer = await ws.recv()
        assert type(answer) is type(message)
        if isinstance(message, str):
            assert answer == message
        else:
            assert_same(answer, message)


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_round_trip(compression):
    async with serve(echo, "127.0.0.1", 0, compression=compression, **UNLIMITED) as server:
        async with connect(url_of(server), proxy=None, compression=compression, **UNLIMITED) as ws:
            assert bool(ws.protocol.extensions) == (compression is not None)
            await exchange(ws)


async def test_fragments_and_pings():
    async with serve(echo, "127.0.0.1", 0) as server:
        async with connect(url_of(server), proxy=None) as ws:
            await ws.send(part * 100 for part in ("one ", "two ", "three"))
            latency = await (await ws.ping())
            assert latency >= 0
            assert await ws.recv() == "one " * 100 + "two " * 100 + "three" * 100


async def test_slow_reader_holds_the_sender_back():
    sent, transports = [], []

    async def handler(ws):
        transports.append(ws.transport)
        for number in range(200):
            await ws.send(bytes([number]) * 256 * 1024)
            sent.append(number)

    async with serve(handler, "127.0.0.1", 0, compression=None) as server:
        async with connect(url_of(server), proxy=None, compression=None, max_queue=2) as ws:
            await poll(lambda: transports and transports[0].get_write_buffer_size() > 0)
            assert len(sent) < 200
            received = [message async for message in ws]
    assert [(message[0], set(message), len(message)) for message in received] == [
        (number, {number}, 256 * 1024) for number in range(200)]


@pytest.mark.parametrize("code", [1000, 1001, 4000])
async def test_close_codes(code):
    seen = []

    async def handler(ws):
        try:
            await ws.recv()
        except websockets.ConnectionClosed as exc:
            seen.append(exc.rcvd.code)

    async with serve(handler, "127.0.0.1", 0) as server:
        async with connect(url_of(server), proxy=None) as ws:
            await ws.close(code, "bye")
            assert ws.close_code == code
        await poll(lambda: seen)
    assert seen == [code]


async def test_aborted_connection():
    seen = []

    async def handler(ws):
        try:
            await ws.recv()
        except websockets.ConnectionClosedError as exc:
            seen.append(exc.rcvd)

    async with serve(handler, "127.0.0.1", 0) as server:
        async with connect(url_of(server), proxy=None) as ws:
            ws.transport.abort()
            with pytest.raises(websockets.ConnectionClosedError):
                await ws.recv()
        await poll(lambda: seen)
    assert seen == [None]


async def test_server_that_closes_tells_its_clients():
    server = await serve(echo, "127.0.0.1", 0)
    async with connect(url_of(server), proxy=None) as ws:
        await ws.send("before")
        assert await ws.recv() == "before"
        server.close()
        with pytest.raises(websockets.ConnectionClosedOK) as caught:
            await ws.recv()
        assert caught.value.rcvd.code == 1001
    await server.wait_closed()


async def test_many_clients():
    async with serve(echo, "127.0.0.1", 0) as server:
        async def one(number):
            async with connect(url_of(server), proxy=None) as ws:
                for turn in range(10):
                    await ws.send(f"{number}/{turn}")
                    assert await ws.recv() == f"{number}/{turn}"
        await asyncio.gather(*(one(number) for number in range(50)))


async def test_tls(server_tls, client_tls):
    async with serve(echo, "127.0.0.1", 0, ssl=server_tls, **UNLIMITED) as server:
        async with connect(url_of(server, "wss"), proxy=None, ssl=client_tls, **UNLIMITED) as ws:
            await exchange(ws)


async def test_unix_socket():
    with unix_path() as path:
        async with unix_serve(echo, path, **UNLIMITED):
            async with unix_connect(path, **UNLIMITED) as ws:
                await exchange(ws)
