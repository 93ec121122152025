"""Large bodies through aiohttp, checked by hash: uploads and downloads, back-pressure from whoever
does not read, time limits, cancellation, and connections that end in the middle of a body."""
import asyncio
import functools
import hashlib
import io

import pytest
from aiohttp import (
    ClientConnectionError,
    ClientPayloadError,
    ClientTimeout,
    ServerDisconnectedError,
    SocketTimeoutError,
    web,
)
from http_tools import CHUNK, Sink, Source, digest, raw_client, send, served
from support import pattern, poll, recv_exactly, reset, settle

LARGE = 48 * 1024 * 1024        # many times what sockets and aiohttp buffer
UNLIMITED = {"client_max_size": 0}


async def hash_body(request):
    sink = await Sink().take_all(request.content.iter_chunked(CHUNK))
    return web.json_response({"received": sink.received, "digest": sink.hexdigest()})


async def test_upload_from_memory():
    data = pattern(LARGE)
    async with served(web.post("/", hash_body)) as (session, url):
        async with session.post(url, data=io.BytesIO(data)) as response:
            assert await response.json() == {"received": LARGE, "digest": digest(data)}


async def test_upload_of_a_generator():
    source = Source(LARGE)
    async with served(web.post("/", hash_body)) as (session, url):
        async with session.post(url, data=source.__aiter__()) as response:
            assert (await response.json())["digest"] == source.hexdigest()


async def test_upload_of_a_file_read_whole(tmp_path):
    path = tmp_path / "file"
    data = pattern(LARGE)
    path.write_bytes(data)

    async def handler(request):
        return web.Response(text=digest(await request.read()))

    async with served(web.post("/", handler), app_options=UNLIMITED) as (session, url):
        with path.open("rb") as file:
            async with session.post(url, data=file) as response:
                assert await response.text() == digest(data)


async def test_download_of_bytes():
    data = pattern(LARGE)

    async def handler(request):
        return web.Response(body=data)

    async with served(web.get("/", handler)) as (session, url):
        async with session.get(url) as response:
            assert response.content_length == LARGE
            sink = await Sink().take_all(response.content.iter_any())
        assert sink.hexdigest() == digest(data)
        async with session.get(url) as response:
            assert digest(await response.read()) == digest(data)


async def test_both_ways_at_once():
    """The handler returns each chunk as it comes; the client sends and receives together."""
    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        async for data in request.content.iter_any():
            await response.write(data)
        await response.write_eof()
        return response

    source = Source(LARGE)
    async with served(web.post("/", handler)) as (session, url):
        async with session.post(url, data=source.__aiter__()) as response:
            sink = await Sink().take_all(response.content.iter_any())
    assert sink.received == LARGE
    assert sink.hexdigest() == source.hexdigest()


async def test_slow_client_holds_the_server_back():
    source, started = Source(LARGE), []

    async def handler(request):
        response = web.StreamResponse(headers={"Content-Length": str(LARGE)})
        await response.prepare(request)
        started.append(request.transport)
        for data in source:
            await response.write(data)
        await response.write_eof()
        return response

    async with served(web.get("/", handler)) as (session, url):
        async with session.get(url) as response:
            await poll(lambda: started and started[0].get_write_buffer_size() > 0)
            await settle()
            assert source.sent < LARGE
            sink = await Sink().take_all(response.content.iter_chunked(CHUNK))
    assert sink.hexdigest() == source.hexdigest()


async def test_slow_handler_holds_the_client_back():
    source, started, go_on = Source(LARGE), [], asyncio.Event()

    async def handler(request):
        started.append(request.transport)
        await go_on.wait()
        return await hash_body(request)

    async with served(web.post("/", handler)) as (session, url):
        upload = asyncio.ensure_future(session.post(url, data=source.__aiter__()))
        await poll(lambda: started and not started[0].is_reading())
        await settle()
        assert 0 < source.sent < LARGE
        go_on.set()
        async with await upload as response:
            assert (await response.json())["digest"] == source.hexdigest()


async def stall(state, request):
    """Half of a body of 2000 bytes, and then nothing until the client has gone."""
    try:
        response = web.StreamResponse(headers={"Content-Length": "2000"})
        await response.prepare(request)
        await response.write(b"x" * 1000)
        state["halfway"].set()
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        state["ended"].set_result("cancelled")
        raise


def prepared(request_handler):
    """A route, and futures that tell what became of its handler."""
    state = {"ended": asyncio.get_running_loop().create_future(), "halfway": asyncio.Event()}
    return web.get("/", functools.partial(request_handler, state)), state


@pytest.mark.parametrize("timeout", [
    ClientTimeout(sock_read=0.05), ClientTimeout(total=0.05)], ids=["sock_read", "total"])
async def test_client_timeout(timeout):
    route, state = prepared(stall)
    async with served(route, handler_cancellation=True) as (session, url):
        with pytest.raises(asyncio.TimeoutError) as caught:
            async with session.get(url, timeout=timeout) as response:
                await response.read()
        assert isinstance(caught.value, SocketTimeoutError) == (timeout.sock_read is not None)
        if state["halfway"].is_set():       # a total limit may pass before
            assert await state["ended"] == "cancelled"


async def test_cancelled_client():
    route, state = prepared(stall)
    async with served(route, handler_cancellation=True) as (session, url):
        async def get():
            async with session.get(url) as response:
                await response.read()
        task = asyncio.ensure_future(get())
        await state["halfway"].wait()
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await state["ended"] == "cancelled"


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_client_leaves_in_mid_request(how):
    caught = asyncio.get_running_loop().create_future()

    async def handler(request):
        try:
            await request.content.readexactly(1000)
            await request.read()
        except Exception as exc:
            caught.set_result(exc)
            raise
        return web.Response()

    async with served(web.post("/", handler)) as (_, url):
        with raw_client(url) as sock:
            await send(sock, b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n"
                       + b"x" * 5000)
            if how == "rst":
                await settle()
                reset(sock)
        assert isinstance(await caught, ConnectionResetError), await caught


async def test_client_leaves_in_mid_response():
    source = Source(LARGE)
    caught = asyncio.get_running_loop().create_future()

    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for data in source:
                await response.write(data)
        except Exception as exc:
            caught.set_result(exc)
            raise
        return response

    async with served(web.get("/", handler)) as (_, url):
        with raw_client(url) as sock:
            await send(sock, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await recv_exactly(sock, 8) == b"HTTP/1.1"
        assert isinstance(await caught, ConnectionError), await caught
        assert source.sent < LARGE


@pytest.mark.parametrize("length", [{"Content-Length": "2000"}, {}], ids=["length", "chunked"])
async def test_server_leaves_in_mid_response(length):
    async def handler(request):
        response = web.StreamResponse(headers=length)
        await response.prepare(request)
        await response.write(b"x" * 1000)
        request.transport.close()
        return response

    async with served(web.get("/", handler)) as (session, url):
        async with session.get(url) as response:
            with pytest.raises(ClientPayloadError):
                await response.read()


async def test_server_leaves_before_the_response():
    async def handler(request):
        request.transport.abort()
        return web.Response()

    async with served(web.post("/", handler)) as (session, url):
        with pytest.raises((ServerDisconnectedError, ClientConnectionError)):
            await session.post(url, data=b"x")


async def test_response_before_the_end_of_the_upload():
    """A handler that answers without reading ends an upload that would never end by itself."""
    async def handler(request):
        return web.Response(status=413, text="too large")

    async def endless():
        while True:
            yield bytes(CHUNK)

    async with served(web.post("/", handler)) as (session, url):
        try:
            async with session.post(url, data=endless()) as response:
                assert (response.status, await response.text()) == (413, "too large")
        except ClientConnectionError:
            pass        # the reset overtook the answer; which of both is the kernel's to say
        async with session.post(url, data=b"") as response:
            assert response.status == 413


def test_hashes_tell_data_apart():
    """The tools above can fail: misplaced chunks have another hash."""
    chunks = list(Source(3 * CHUNK))
    assert hashlib.blake2b(b"".join(chunks)).hexdigest() == digest(b"".join(Source(3 * CHUNK)))
    assert digest(b"".join([chunks[1], chunks[0], chunks[2]])) != digest(b"".join(chunks))
