"""Request bodies read by zcloop.contrib.aiohttp are what was sent, whatever surrounds them.

Each case runs on asyncio, uvloop and zcloop, with both of aiohttp's parsers and both
functions, so that the usual way and ours give the same results; on zcloop, large bodies with a
Content-Length must have gone past the parser.
"""
import asyncio
import gzip
import itertools
import zlib

import pytest
from aiohttp import web
from contrib_tools import (
    BODY,
    ROOM,
    SIZE,
    chunked,
    digest,
    filled,
    head,
    link,
    post,
)
from support import pattern, poll, settle, unix_path

from zcloop.contrib.aiohttp import iter_body, read_body_into

pytestmark = pytest.mark.usefixtures("parser")
LEAST_FILLED = SIZE // 2        # of BODY; the rest may have come before the handler ran


def answering(read, log=None):
    """A handler that answers with what it read; `log` gets the bytes that were filled in place."""
    async def handler(request):
        before = filled(request)
        body = await read(request)
        if log is not None:
            log.append(None if before is None else filled(request) - before)
        return web.Response(text=digest(body))
    return handler


def went_past(log, loop_factory):
    """Whether all bodies took the way that is expected on this loop."""
    if loop_factory.name == "zcloop":
        return all(count >= LEAST_FILLED for count in log)
    return set(log) == {None}


async def test_a_large_body(read, loop_factory):
    log = []
    async with link(answering(read, log)) as client:
        await client.send(post(BODY))
        assert await client.response() == (200, digest(BODY))
    assert went_past(log, loop_factory)


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 131073, 262144, 1_000_001])
async def test_sizes(read, size):
    body = pattern(size)
    async with link(answering(read)) as client:
        for _ in range(2):
            await client.send(post(body))
            assert await client.response() == (200, digest(body))


async def test_no_body(read):
    async with link(answering(read)) as client:
        await client.send(head(method="GET"))
        assert await client.response() == (200, digest(b""))


@pytest.mark.parametrize("way", ["pieces", "together"])
async def test_headers_and_body_in_pieces_of_any_size(read, loop_factory, way):
    """The body's first bytes come with the headers, the last with the next request's."""
    log = []
    stream = post(BODY) + head(method="GET")
    cuts = [0, 20, 58, 60, 100, 5000, 70_000, 71_000, SIZE, len(stream) - 3, len(stream)]
    async with link(answering(read, log)) as client:
        for start, stop in itertools.pairwise(cuts):
            await client.send(stream[start:stop])
            if way == "pieces":
                await settle(2)
        assert await client.response() == (200, digest(BODY))
        assert await client.response() == (200, digest(b""))
    assert went_past(log[:1], loop_factory)


@pytest.mark.parametrize("early", [1, 1000, 64 * 1024, 300_000, 2_000_000, SIZE])
async def test_what_came_before_the_handler_read(read, early):
    """Up to what fills aiohttp's queue, and beyond: it has stopped reading by then."""
    async def handler(request):
        queue = request.content
        await poll(lambda: queue.total_bytes >= min(early, queue.get_read_buffer_limits()[1]))
        return web.Response(text=digest(await read(request)))

    async with link(handler) as client:
        await client.send(head(SIZE) + BODY[:early])
        await client.send(BODY[early:])
        assert await client.response() == (200, digest(BODY))


async def test_keep_alive(read, loop_factory):
    """Large bodies follow each other on one connection, with small ones in between."""
    log = []
    async with link(answering(read, log)) as client:
        for number in range(5):
            body = pattern(SIZE, number)
            await client.send(post(body))
            assert await client.response() == (200, digest(body))
            await client.send(post(b"small"))
            assert await client.response() == (200, digest(b"small"))
    assert went_past(log[::2], loop_factory)


async def test_pipelining(read):
    """Requests that were sent before the answers: more than aiohttp lets wait at a time."""
    bodies = [BODY, b"", b"x" * 70_000, *[b"small"] * 70, pattern(SIZE, 1), b"last"]
    async with link(answering(read)) as client, asyncio.TaskGroup() as group:
        group.create_task(client.send(b"".join(map(post, bodies))))
        for body in bodies:
            assert await client.response() == (200, digest(body))


async def test_expect_100_continue(read, loop_factory):
    log = []
    async with link(answering(read, log)) as client:
        for _ in range(2):
            await client.send(head(SIZE, "Expect: 100-continue"))
            assert (await client.head())[0] == 100
            await client.send(BODY)
            assert await client.response() == (200, digest(BODY))
    assert went_past(log, loop_factory)


async def test_connection_close(read):
    async with link(answering(read)) as client:
        await client.send(post(BODY, "Connection: close"))
        assert await client.response() == (200, digest(BODY))
        assert await client.ended()


async def test_chunked_goes_the_usual_way(read, loop_factory):
    log = []
    async with link(answering(read, log)) as client:
        for body in (BODY, b"", BODY):
            await client.send(head(None, "Transfer-Encoding: chunked"), chunked(body))
            assert await client.response() == (200, digest(body))
    assert set(log) == ({0} if loop_factory.name == "zcloop" else {None})


@pytest.mark.parametrize("encoding, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_compressed_goes_the_usual_way(read, loop_factory, encoding, pack):
    log = []
    packed = pack(BODY, 1)
    async with link(answering(read, log)) as client:
        for _ in range(2):
            await client.send(post(packed, f"Content-Encoding: {encoding}"))
            assert await client.response() == (200, digest(BODY))
    assert set(log) == ({0} if loop_factory.name == "zcloop" else {None})


async def test_unix_socket(read, loop_factory):
    log = []
    with unix_path() as path:
        async with link(answering(read, log), path=path) as client:
            await client.send(post(BODY), post(BODY))
            assert await client.response() == (200, digest(BODY))
            assert await client.response() == (200, digest(BODY))
    assert went_past(log, loop_factory)


# -- limits -------------------------------------------------------------------


@pytest.mark.parametrize("way", ["length", "chunked"])
async def test_client_max_size(way):
    """413 as from request.read(), and the connection goes on behind the refused body."""
    async def handler(request):
        reader = request.read() if request.path == "/read" else \
            read_body_into(request, bytearray(ROOM))
        await reader
        return web.Response(text="taken")

    async with link(handler, app_options={"client_max_size": 100_000}) as client:
        for path in ("/read", "/into"):
            if way == "length":
                await client.send(head(SIZE, path=path), BODY)
            else:
                await client.send(head(None, "Transfer-Encoding: chunked", path=path),
                                  chunked(BODY))
            status, text = await client.response()
            assert status == 413
            assert text.startswith("Maximum request body size 100000 exceeded")
        await client.send(head(99_999, path="/into"), BODY[:99_999])
        assert await client.response() == (200, "taken")


async def test_no_limit_while_iterating():
    async def handler(request):
        return web.Response(text=str(sum([len(view) async for view in iter_body(request)])))

    async with link(handler, app_options={"client_max_size": 1000}) as client:
        await client.send(post(BODY))
        assert await client.response() == (200, str(SIZE))


@pytest.mark.parametrize("way", ["length", "chunked"])
async def test_a_buffer_that_is_too_small(way):
    async def handler(request):
        await read_body_into(request, bytearray(SIZE - 1))

    async with link(handler) as client:
        for _ in range(2):
            if way == "length":
                await client.send(post(BODY))
            else:
                await client.send(head(None, "Transfer-Encoding: chunked"), chunked(BODY))
            status, text = await client.response()
            assert status == 413
            assert text.startswith(f"Maximum request body size {SIZE - 1} exceeded")


@pytest.mark.parametrize("buf, error", [
    (b"read-only", TypeError), (memoryview(bytearray(10))[::2], TypeError), (10, TypeError)])
async def test_what_is_no_buffer(buf, error):
    async def handler(request):
        with pytest.raises(error):
            await read_body_into(request, buf)
        return web.Response(text=digest(await request.read()))

    async with link(handler) as client:
        await client.send(post(b"body"))
        assert await client.response() == (200, digest(b"body"))


async def test_the_exact_buffer_and_items_of_other_sizes():
    import array

    async def handler(request):
        buf = array.array("Q", bytes(SIZE))
        assert await read_body_into(request, buf) == SIZE
        return web.Response(text=digest(buf.tobytes()))

    async with link(handler) as client:
        await client.send(post(BODY))
        assert await client.response() == (200, digest(BODY))


async def test_the_new_parser_has_the_old_ones_limits():
    """After a large body, lines and headers are still refused, and read, as configured."""
    async def handler(request):
        return web.Response(text=str(await read_body_into(request, bytearray(ROOM))))

    limits = {"max_line_size": 300, "max_field_size": 20_000}
    for good, bad in (({"x": 19_000}, {"x": 21_000}), ({"path": 200}, {"path": 400})):
        async with link(handler, **limits) as client:
            for sizes in (good, bad):
                await client.send(post(BODY))
                assert await client.response() == (200, str(SIZE))
                await client.send(head(None, "X: " + "x" * sizes.get("x", 0), method="GET",
                                       path="/" + "p" * sizes.get("path", 0)))
                assert (await client.response())[0] == (200 if sizes is good else 400)


# -- who reads what -----------------------------------------------------------


async def test_a_second_call(read):
    """Nothing is left, for any reader; but what request.read() keeps is there for all."""
    async def handler(request):
        if request.path == "/kept":
            assert await request.read() == BODY
            assert await read(request) == await read(request) == await request.read() == BODY
        else:
            assert await read(request) == BODY
            assert await read(request) == await read(request) == b""
            assert await request.content.read() == await request.content.readany() == b""
            assert not request.can_read_body
        return web.Response(text="ok")

    async with link(handler) as client:
        for path in ("/", "/kept", "/"):
            await client.send(head(SIZE, path=path), BODY)
            assert await client.response() == (200, "ok")


@pytest.mark.parametrize("first", [1, 1000, 100_000, 2_900_000])
async def test_after_content_was_read_in_part(read, first):
    async def handler(request):
        start = await request.content.readexactly(first)
        return web.Response(text=digest(start + await read(request)))

    async with link(handler) as client:
        await client.send(post(BODY), post(BODY))
        assert await client.response() == (200, digest(BODY))
        assert await client.response() == (200, digest(BODY))


@pytest.mark.parametrize("pieces", [1, 3, 20])
async def test_content_goes_on_where_an_iteration_was_left(pieces):
    """Also while the iterator is still held, and aiohttp's parser must follow."""
    async def handler(request):
        iterator = iter_body(request, 100_000)
        start = b"".join([bytes(await anext(iterator, b"")) for _ in range(pieces)])
        rest = await request.content.read()
        assert [view async for view in iterator] == []
        return web.Response(text=digest(start + rest))

    async with link(handler) as client:
        for _ in range(2):
            await client.send(post(BODY), post(b"next"))
            assert await client.response() == (200, digest(BODY))
            assert await client.response() == (200, digest(b"next"))


async def test_both_functions_share_a_body():
    async def handler(request):
        iterator = iter_body(request, 70_000)
        parts = [bytes(await anext(iterator))]
        parts.append(bytes(await anext(iterator)))
        parts.append(await request.content.readexactly(10))
        buf = bytearray(ROOM)
        parts.append(bytes(await anext(iterator)))
        parts.append(bytes(buf[:await read_body_into(request, buf)]))
        assert [view async for view in iterator] == []
        return web.Response(text=digest(b"".join(parts)))

    async with link(handler) as client:
        await client.send(post(BODY), post(BODY))
        assert await client.response() == (200, digest(BODY))
        assert await client.response() == (200, digest(BODY))


@pytest.mark.parametrize("after", [1, 100_001, 1_200_000])
async def test_a_handler_that_stops_half_way(after):
    """Its answer comes at once; the rest of the body is read and dropped, as aiohttp does."""
    async def handler(request):
        if request.method == "POST":
            seen = 0
            async for view in iter_body(request, 100_000):
                assert bytes(view) == BODY[seen:seen + len(view)]
                seen += len(view)
                if seen >= after:
                    break
        return web.Response(text="enough")

    async with link(handler) as client:
        for _ in range(3):
            await client.send(head(SIZE) + BODY[:1_500_000])
            assert await client.response() == (200, "enough")
            await client.send(BODY[1_500_000:] + head(method="GET"))
            assert await client.response() == (200, "enough")


async def test_a_second_reader_is_refused(read):
    """RuntimeError for whoever comes while another one waits, on either side of it."""
    async def handler(request):
        first = asyncio.ensure_future(read(request))
        await poll(lambda: request.content._waiter is not None)
        for second in (read(request), request.content.read(), read_body_into(
                request, bytearray(ROOM)), anext(iter_body(request))):
            with pytest.raises(RuntimeError, match="another coroutine is already waiting"):
                await second
        refused.set()
        return web.Response(text=digest(await first))

    refused = asyncio.Event()
    async with link(handler) as client:
        await client.send(head(SIZE) + BODY[:1000])
        await refused.wait()
        await client.send(BODY[1000:])
        assert await client.response() == (200, digest(BODY))


async def test_a_sender_that_waits_for_each_answer():
    """An iteration hands out what there is: a client that waits for it isn't waited for."""
    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        async for view in iter_body(request):
            await response.write(b"." * len(view))
        return response

    async with link(handler) as client:
        await client.send(head(SIZE, "Connection: close"))
        await client.head()
        for start, stop in ((0, 1), (1, 70_000), (70_000, 70_001), (70_001, 1_000_000)):
            await client.send(BODY[start:stop])
            seen = 0
            while seen < stop - start:          # chunk sizes come in between
                seen += (await client.body(1)).count(b".")
        await client.send(BODY[1_000_000:])
        seen = 0
        while not await client.ended():
            pass
