"""aiohttp's client and server, unchanged, speak HTTP/1.1 alike on every loop: connections that are
kept, pipelined requests, chunked bodies both ways, compression both ways, 100-continue, and errors
that end a connection. What goes over the wire is looked at by a raw socket where that matters."""
import asyncio
import gzip
import io
import zlib

import pytest
from aiohttp import ClientSession, TCPConnector, web
from http_tools import address, digest, parse_responses, raw_client, send, served, serving
from support import assert_same, pattern, recv_exactly, recv_to_end

BODY = pattern(300_000)


async def echo(request):
    return web.Response(body=await request.read(), headers={
        "X-Transfer": request.headers.get("Transfer-Encoding", "length"),
        "X-Peer": address(request.transport.get_extra_info("peername"))})


async def count(request):
    """Chunked: the response's length is not known when its head leaves."""
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    for number in range(int(request.query["to"])):
        await response.write(b"%d\n" % number)
    await response.write_eof(b"end\n")
    return response


async def test_connection_is_kept():
    async with served(web.post("/", echo)) as (session, url):
        peers = set()
        for size in 0, 1, 1000, 300_000, 5:
            async with session.post(url, data=BODY[:size]) as response:
                assert response.status == 200
                assert_same(await response.read(), BODY[:size])
                peers.add(response.headers["X-Peer"])
        assert len(peers) == 1


async def test_many_connections_at_once():
    async def one(session, url, number):
        body = BODY[number:number + 20_000]
        async with session.post(url, data=body) as response:
            assert_same(await response.read(), body)
            return response.headers["X-Peer"]

    app = web.Application()
    app.router.add_post("/", echo)
    async with serving(app) as url, ClientSession(connector=TCPConnector(limit=20)) as session:
        peers = await asyncio.gather(*(one(session, url, n) for n in range(200)))
    assert 1 < len(set(peers)) <= 20


async def test_connection_close_is_obeyed():
    async with served(web.post("/", echo)) as (_, url):
        with raw_client(url) as sock:
            await send(sock, b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
                             b"Content-Length: 2\r\n\r\nhi")
            [(status, headers, body)] = parse_responses(await recv_to_end(sock), ["POST"])
            assert (status, headers["Connection"], body) == (200, "close", b"hi")


async def test_pipelined_requests_are_answered_in_order():
    """One segment holds twenty requests; the first ones take longer than the last."""
    async def handler(request):
        number = int(request.match_info["number"])
        for _ in range(20 - number):
            await asyncio.sleep(0)
        return web.Response(body=b"%d:" % number + await request.read())

    async with served(web.post("/{number}", handler)) as (_, url):
        with raw_client(url) as sock:
            await send(sock, b"".join(
                b"POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n%s\r\nabc"
                % (n, b"Connection: close\r\n" if n == 19 else b"") for n in range(20)))
            answers = parse_responses(await recv_to_end(sock), ["POST"] * 20)
    assert [body for *_, body in answers] == [b"%d:abc" % n for n in range(20)]


async def test_request_in_single_bytes():
    async with served(web.post("/", echo)) as (_, url):
        with raw_client(url) as sock:
            request = (b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
                       b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
            for at in range(len(request)):
                await send(sock, request[at:at + 1])
                await asyncio.sleep(0)
            [(status, _, body)] = parse_responses(await recv_to_end(sock), ["POST"])
    assert (status, body) == (200, b"abcde")


async def test_chunked_request_body():
    async def chunks():
        for at in range(0, len(BODY), 7000):
            yield BODY[at:at + 7000]

    async with served(web.post("/", echo)) as (session, url):
        async with session.post(url, data=chunks()) as response:
            assert response.headers["X-Transfer"] == "chunked"
            assert_same(await response.read(), BODY)


async def test_chunked_response_body():
    async with served(web.get("/", count)) as (session, url):
        async with session.get(url, params={"to": 5000}) as response:
            assert response.headers["Transfer-Encoding"] == "chunked"
            assert "Content-Length" not in response.headers
            lines = [line async for line in response.content]
        assert lines == [b"%d\n" % n for n in range(5000)] + [b"end\n"]


DECODERS = {"gzip": gzip.decompress, "deflate": zlib.decompress}


@pytest.mark.parametrize("coding", DECODERS)
async def test_compressed_response(coding):
    async def handler(request):
        response = web.Response(body=BODY)
        response.enable_compression(web.ContentCoding(coding))
        return response

    async with served(web.get("/", handler)) as (session, url):
        async with session.get(url) as response:
            assert response.headers["Content-Encoding"] == coding
            assert_same(await response.read(), BODY)
        with raw_client(url) as sock:
            await send(sock, b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
                             b"Accept-Encoding: %s\r\n\r\n" % coding.encode())
            [(_, headers, body)] = parse_responses(await recv_to_end(sock), ["GET"])
            assert headers["Content-Encoding"] == coding
            assert len(body) < len(BODY)
            assert_same(DECODERS[coding](body), BODY)


@pytest.mark.parametrize("coding", DECODERS)
async def test_compressed_request(coding):
    async def handler(request):
        assert request.headers["Content-Encoding"] == coding
        return web.Response(text=digest(await request.read()))

    async with served(web.post("/", handler)) as (session, url):
        async with session.post(url, data=BODY, compress=coding) as response:
            assert await response.text() == digest(BODY)


async def test_continue_is_sent_before_the_body():
    async with served(web.post("/", echo)) as (session, url):
        async with session.post(url, data=BODY, expect100=True) as response:
            assert_same(await response.read(), BODY)
        with raw_client(url) as sock:
            await send(sock, b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
                             b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
            interim = b"HTTP/1.1 100 Continue\r\n\r\n"
            assert await recv_exactly(sock, len(interim)) == interim
            await send(sock, b"hello")
            [(status, _, body)] = parse_responses(await recv_to_end(sock), ["POST"])
            assert (status, body) == (200, b"hello")


async def test_refused_expectation():
    """A handler for `Expect` that refuses: the body is never asked for."""
    async def refuse(request):
        raise web.HTTPExpectationFailed(text="no")

    app = web.Application()
    app.router.add_post("/", echo, expect_handler=refuse)
    async with serving(app) as url, ClientSession() as session:
        async with session.post(url, data=BODY, expect100=True) as response:
            assert response.status == 417
            assert await response.text() == "no"


async def test_head_and_empty_responses():
    async def handler(request):
        return web.Response(status=int(request.query["status"]), text="body")

    async with served(web.get("/", handler)) as (session, url):
        async with session.head(url, params={"status": 200}) as response:
            assert response.headers["Content-Length"] == "4"
            assert await response.read() == b""
        for status in 204, 304:
            async with session.get(url, params={"status": status}) as response:
                assert (response.status, await response.read()) == (status, b"")
        async with session.get(url, params={"status": 200}) as response:
            assert await response.text() == "body"


async def test_too_large_a_body_is_refused():
    async with served(web.post("/", echo), app_options={"client_max_size": 1000}) as (session, url):
        async with session.post(url, data=b"x" * 1001) as response:
            assert response.status == 413
        async with session.post(url, data=b"x" * 1000) as response:
            assert response.status == 200


async def test_malformed_request_is_answered_and_closed():
    async with served(web.get("/", count)) as (_, url):
        with raw_client(url) as sock:
            await send(sock, b"nonsense\r\n\r\n")
            [(status, _, _)] = parse_responses(await recv_to_end(sock), ["GET"])
            assert status == 400


async def test_multipart_form():
    async def handler(request):
        form = await request.post()
        upload = form["file"]
        return web.json_response({
            "name": form["name"], "filename": upload.filename,
            "digest": digest(upload.file.read())})

    async with served(web.post("/", handler)) as (session, url):
        async with session.post(url, data={"name": "zürich", "file": io.BytesIO(BODY)}) as response:
            assert await response.json() == {
                "name": "zürich", "filename": "file", "digest": digest(BODY)}


async def test_redirects_and_cookies():
    async def first(request):
        response = web.HTTPFound("/second")
        response.set_cookie("seen", "first")
        raise response

    async def second(request):
        return web.Response(text=request.cookies["seen"])

    async with served(web.get("/first", first), web.get("/second", second)) as (session, url):
        session.cookie_jar._unsafe = True       # cookies of an IP address
        async with session.get(f"{url}/first") as response:
            assert [r.status for r in response.history] == [302]
            assert await response.text() == "first"
