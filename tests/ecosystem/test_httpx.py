"""httpx's AsyncClient (over anyio) against an aiohttp server, both on the loop under test: bodies
streamed up and down, back-pressure, many requests over few connections, TLS, unix sockets, time
limits and cancellation."""
import asyncio
import contextlib

import httpx
import pytest
from aiohttp import web
from http_tools import CHUNK, Sink, Source, serving
from support import poll, settle, unix_path

LARGE = 24 * 1024 * 1024


async def upload(request):
    sink = await Sink().take_all(request.content.iter_chunked(CHUNK))
    peer = request.transport.get_extra_info("peername")
    return web.json_response({"digest": sink.hexdigest(), "peer": str(peer)})


@contextlib.asynccontextmanager
async def service(source=None, tls=None, path=None, **client_options):
    """(client, base URL, transports of downloads): the server takes uploads and sends `source`."""
    transports = []

    async def download(request):
        response = web.StreamResponse()
        await response.prepare(request)
        transports.append(request.transport)
        for data in source:
            await response.write(data)
        return response

    async def never(request):
        transports.append(request.transport)
        await asyncio.get_running_loop().create_future()

    app = web.Application()
    app.add_routes([web.post("/", upload), web.get("/", download), web.get("/never", never)])
    async with serving(app, tls=tls, path=path, handler_cancellation=True) as url:
        async with httpx.AsyncClient(timeout=None, **client_options) as client:
            yield client, url, transports


async def check(client, url, source):
    up = Source(LARGE)
    answer = (await client.post(url, content=up.__aiter__())).json()
    assert answer["digest"] == up.hexdigest()
    async with client.stream("GET", url) as response:
        sink = await Sink().take_all(response.aiter_bytes())
    assert (sink.received, sink.hexdigest()) == (LARGE, source.hexdigest())


async def test_streams_both_ways():
    source = Source(LARGE)
    async with service(source) as (client, url, _):
        await check(client, url, source)


async def test_tls(server_tls, client_tls):
    source = Source(LARGE)
    async with service(source, tls=server_tls, verify=client_tls) as (client, url, _):
        await check(client, url, source)


async def test_unix_socket():
    source = Source(LARGE)
    with unix_path() as path:
        async with service(source, path=path,
                           transport=httpx.AsyncHTTPTransport(uds=path)) as (client, url, _):
            await check(client, url, source)


async def test_slow_client_holds_the_server_back():
    source = Source(2 * LARGE)
    async with service(source) as (client, url, transports):
        async with client.stream("GET", url) as response:
            await poll(lambda: transports and transports[0].get_write_buffer_size() > 0)
            await settle()
            assert source.sent < source.total
            sink = await Sink().take_all(response.aiter_bytes())
    assert sink.hexdigest() == source.hexdigest()


async def test_many_requests_over_few_connections():
    limits = httpx.Limits(max_connections=5)
    async with service(limits=limits) as (client, url, _):
        async def one(number):
            body = Source(number * 100)
            answer = (await client.post(url, content=b"".join(body))).json()
            assert answer["digest"] == body.hexdigest()
            return answer["peer"]
        peers = await asyncio.gather(*(one(number) for number in range(100)))
    assert len(set(peers)) <= 5


async def test_read_timeout():
    async with service() as (client, url, _):
        with pytest.raises(httpx.ReadTimeout):
            await client.get(f"{url}/never", timeout=httpx.Timeout(None, read=0.05))


async def test_cancellation_closes_the_connection():
    async with service() as (client, url, transports):
        task = asyncio.ensure_future(client.get(f"{url}/never"))
        await poll(lambda: transports)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await poll(lambda: transports[0].is_closing())
