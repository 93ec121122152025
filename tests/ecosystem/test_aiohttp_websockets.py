"""WebSockets of aiohttp, both sides: text, binary, large and fragmented messages, control frames,
close codes and compression. The echo server is the same for all; fragments are written by hand on
a raw socket, since aiohttp's client sends none."""
import asyncio
import base64
import os
import struct

import pytest
from aiohttp import WSCloseCode, WSMsgType, WSServerHandshakeError, web
from http_tools import digest, raw_client, send, served
from support import assert_same, pattern, poll, recv_exactly, recv_to_end

LARGE = 8 * 1024 * 1024
CODES = [1000, 1001, 1008, 1011, 3000, 4999]


def echo_route(seen=None, **options):
    """Echoes until the client closes; appends (close code, exception) to `seen`."""
    async def handler(request):
        ws = web.WebSocketResponse(**options)
        await ws.prepare(request)
        async for message in ws:
            if message.type is WSMsgType.TEXT:
                await ws.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await ws.send_bytes(message.data)
            else:
                assert message.type is WSMsgType.ERROR, message
        if seen is not None:
            seen.append((ws.close_code, ws.exception()))
        return ws
    return web.get("/ws", handler)


@pytest.mark.parametrize("compress", [0, 15])
async def test_echo(compress):
    async with served(echo_route(max_msg_size=0)) as (session, url):
        async with session.ws_connect(f"{url}/ws", max_msg_size=0, compress=compress) as ws:
            assert bool(ws.compress) == bool(compress)
            for text in "", "a", "zürich " * 1000:
                await ws.send_str(text)
                assert await ws.receive_str() == text
            for size in 0, 1, 125, 126, 65535, 65536, LARGE:
                data = pattern(size)
                await ws.send_bytes(data)
                assert_same(await ws.receive_bytes(), data)


async def test_many_messages_in_flight():
    async with served(echo_route()) as (session, url):
        async with session.ws_connect(f"{url}/ws") as ws:
            async def write():
                for number in range(3000):
                    await ws.send_str(str(number) * (number % 50))
            writing = asyncio.ensure_future(write())
            for number in range(3000):
                assert await ws.receive_str() == str(number) * (number % 50)
            await writing


async def test_many_clients():
    async with served(echo_route()) as (session, url):
        async def one(number):
            async with session.ws_connect(f"{url}/ws") as ws:
                for turn in range(5):
                    await ws.send_json({"client": number, "turn": turn})
                    assert await ws.receive_json() == {"client": number, "turn": turn}
        await asyncio.gather(*(one(number) for number in range(100)))


async def test_slow_reader_holds_the_sender_back():
    """What does not fit waits in the sender: neither side buffers it all, and nothing is lost."""
    state = {"sent": 0, "transport": None}
    frame, count = pattern(256 * 1024), 256

    async def handler(request):
        ws = web.WebSocketResponse(compress=False)
        await ws.prepare(request)
        state["transport"] = request.transport
        for _ in range(count):
            await ws.send_bytes(frame)
            state["sent"] += 1
        await ws.close()
        return ws

    async with served(web.get("/ws", handler)) as (session, url):
        async with session.ws_connect(f"{url}/ws", compress=0) as ws:
            await poll(lambda: state["transport"]
                       and state["transport"].get_write_buffer_size() > 0)
            assert state["sent"] < count
            received = [digest(message.data) async for message in ws]
    assert received == [digest(frame)] * count


@pytest.mark.parametrize("code", CODES)
async def test_close_by_the_client(code):
    seen = []
    async with served(echo_route(seen)) as (session, url):
        async with session.ws_connect(f"{url}/ws") as ws:
            await ws.close(code=code, message=b"bye")
            assert ws.close_code == 1000        # what the server answered with
        await poll(lambda: seen)
    assert seen == [(code, None)]


@pytest.mark.parametrize("code", CODES)
async def test_close_by_the_server(code):
    async def handler(request):
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.send_str("last words")
        await ws.close(code=code, message=b"bye")
        return ws

    async with served(web.get("/ws", handler)) as (session, url):
        async with session.ws_connect(f"{url}/ws") as ws:
            assert await ws.receive_str() == "last words"
            message = await ws.receive()
            assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, code, "bye")
            assert ws.close_code == code


async def test_connection_lost_without_a_close_frame():
    seen = []
    async with served(echo_route(seen)) as (session, url):
        async with session.ws_connect(f"{url}/ws") as ws:
            await ws.send_str("x")
            assert await ws.receive_str() == "x"
            ws._response.connection.transport.abort()
            message = await ws.receive()
            assert message.type in (WSMsgType.CLOSED, WSMsgType.ERROR)
        await poll(lambda: seen)
    assert seen[0][0] == WSCloseCode.ABNORMAL_CLOSURE


async def test_ping_and_pong():
    async with served(echo_route()) as (session, url):
        async with session.ws_connect(f"{url}/ws", autoping=False) as ws:
            await ws.ping(b"are you there")
            message = await ws.receive()
            assert (message.type, bytes(message.data)) == (WSMsgType.PONG, b"are you there")


async def test_heartbeat_keeps_an_idle_connection():
    """Many heartbeats pass while nobody says anything; the connection is good afterwards."""
    pings = []

    async def handler(request):
        ws = web.WebSocketResponse(autoping=False)
        await ws.prepare(request)
        async for message in ws:
            if message.type is WSMsgType.PING:
                pings.append(message)
                await ws.pong(message.data)
            else:
                await ws.send_str(message.data)
        return ws

    async with served(web.get("/ws", handler)) as (session, url):
        # The time limit for a pong is half of that.
        async with session.ws_connect(f"{url}/ws", heartbeat=20) as ws:
            ws._heartbeat = 0.02            # the intervals; the limit stays
            ws._reset_heartbeat()
            receiving = asyncio.ensure_future(ws.receive_str())
            await poll(lambda: len(pings) >= 5)
            await ws.send_str("still here")
            assert await receiving == "still here"


async def test_too_large_a_message():
    seen = []
    async with served(echo_route(seen, max_msg_size=1000)) as (session, url):
        async with session.ws_connect(f"{url}/ws") as ws:
            await ws.send_bytes(b"x" * 1001)
            assert (await ws.receive()).type is WSMsgType.CLOSE
            assert ws.close_code == WSCloseCode.MESSAGE_TOO_BIG
        await poll(lambda: seen)
    assert seen[0][1].code == WSCloseCode.MESSAGE_TOO_BIG


async def test_protocols_and_refusal():
    async def handler(request):
        if "token" not in request.query:
            raise web.HTTPForbidden
        ws = web.WebSocketResponse(protocols=["two", "one"])
        await ws.prepare(request)
        await ws.close()
        return ws

    async with served(web.get("/ws", handler)) as (session, url):
        with pytest.raises(WSServerHandshakeError) as caught:
            await session.ws_connect(f"{url}/ws")
        assert caught.value.status == 403
        async with session.ws_connect(f"{url}/ws?token=1", protocols=["one", "three"]) as ws:
            assert ws.protocol == "one"


async def test_over_tls(server_tls, client_tls):
    data = pattern(LARGE)
    async with served(echo_route(max_msg_size=0), tls=server_tls, client_tls=client_tls) as (
            session, url):
        async with session.ws_connect(f"{url}/ws", max_msg_size=0) as ws:
            await ws.send_bytes(data)
            assert_same(await ws.receive_bytes(), data)


def client_frame(opcode, payload, final=True):
    """A masked frame, as clients send them (RFC 6455, 5.2)."""
    mask = os.urandom(4)
    size = len(payload)
    head = bytes([final << 7 | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    else:
        head += bytes([0x80 | 126]) + struct.pack(">H", size)
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


async def upgrade(sock):
    await send(sock, b"GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n"
                     % base64.b64encode(os.urandom(16)))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await recv_exactly(sock, 1)
    assert head.startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize("step", [None, 1, 3])
async def test_fragments_with_a_ping_between_them(step):
    """Also when every byte of the frames comes by itself, or three together."""
    seen = []
    async with served(echo_route(seen)) as (_, url):
        with raw_client(url) as sock:
            await upgrade(sock)
            frames = b"".join([
                client_frame(1, b"one ", final=False), client_frame(0, b"t" * 300, final=False),
                client_frame(9, b"ping"), client_frame(0, b" three"),
                client_frame(2, b"second"), client_frame(8, struct.pack(">H", 1000) + b"end")])
            step = step or len(frames)
            for at in range(0, len(frames), step):
                await send(sock, frames[at:at + step])
                await asyncio.sleep(0)
            whole = b"one " + b"t" * 300 + b" three"
            assert await recv_to_end(sock) == (
                b"\x8a\x04ping" + b"\x81\x7e" + struct.pack(">H", len(whole)) + whole
                + b"\x82\x06second" + b"\x88\x02" + struct.pack(">H", 1000))
        await poll(lambda: seen)
    assert seen == [(1000, None)]


async def test_reserved_opcode_is_refused():
    seen = []
    async with served(echo_route(seen)) as (_, url):
        with raw_client(url) as sock:
            await upgrade(sock)
            await send(sock, b"\x83\x00")
            answer = await recv_to_end(sock)
            assert answer[:1] == b"\x88"
            assert struct.unpack(">H", answer[2:4]) == (WSCloseCode.PROTOCOL_ERROR,)
        await poll(lambda: seen)
    assert seen[0][1].code == WSCloseCode.PROTOCOL_ERROR
