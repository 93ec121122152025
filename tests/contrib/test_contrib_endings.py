"""What ends a body before its time, or surprises the reader: the same as with aiohttp's own read.

Cancelled reads, clients that go away, shutdowns, TLS, aiohttp with other insides; and programs
that keep what was lent to them.
"""
import asyncio
import contextlib
import random
import socket

import pytest
from aiohttp import StreamReader, web
from contrib_tools import (
    BODY,
    READERS,
    ROOM,
    SIZE,
    connected,
    digest,
    filled,
    head,
    link,
    post,
    serving,
)
from support import pattern, poll, reset

from zcloop.contrib import parsers
from zcloop.contrib.aiohttp import iter_body, read_body_into

HALF = SIZE // 2

OWN = {**READERS, "read": lambda request: request.read()}


async def received(request, nbytes):
    """Until so much of the body has been taken from the socket, by whomever."""
    def count():
        transport = request.transport
        fill = getattr(transport, "_fill", None)
        if fill is not None:        # what a fill has so far is counted when it ends
            return transport.get_extra_info("zcloop").bytes_received
        return request.content.total_bytes
    await poll(lambda: request.transport is None or count() >= nbytes)


# -- clients that go away -----------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("sent", [0, 1000, HALF, SIZE - 1])
async def test_the_exception_is_that_of_request_read(parser, how, sent):
    """The same type and message, whoever reads; and the server goes on."""
    seen, reading = {}, []

    async def handler(request):
        name = request.path.strip("/")
        reading.append(request)
        try:
            await OWN[name](request)
        except BaseException as exc:
            seen[name] = exc
            raise

    async with serving(handler) as address:
        for name in OWN:
            with connected(address) as client:
                await client.send(head(SIZE, path=f"/{name}") + BODY[:sent])
                await poll(lambda: reading and reading[-1].content._waiter is not None)
                reading.clear()
                if how == "reset":
                    reset(client.sock)
                else:
                    client.sock.shutdown(socket.SHUT_WR)
                await poll(lambda name=name: name in seen)
    described = {(type(exc), str(exc)) for exc in seen.values()}
    assert len(described) == 1, seen
    assert isinstance(seen["read"], ConnectionError)


async def test_pieces_that_came_before_the_end_are_handed_out(parser):
    async def handler(request):
        try:
            async for view in iter_body(request, 100_000):
                pieces.append(bytes(view))      # noqa: PERF401 (wanted one by one)
        except ConnectionError:
            done.set()

    pieces, done = [], asyncio.Event()
    async with link(handler) as client:
        await client.send(head(SIZE) + BODY[:1_234_567])
        await poll(lambda: sum(map(len, pieces)) == 1_234_567)
        client.sock.shutdown(socket.SHUT_WR)
        await done.wait()
    assert b"".join(pieces) == BODY[:1_234_567]


async def test_a_connection_closed_by_the_handler(parser, read):
    async def handler(request):
        task = asyncio.ensure_future(read(request))
        await received(request, HALF)
        request.transport.abort()
        with pytest.raises(ConnectionError):
            await task
        done.set()

    done = asyncio.Event()
    async with link(handler) as client:
        await client.send(head(SIZE) + BODY[:HALF])
        await done.wait()
        assert await client.ended()


# -- reads that are given up --------------------------------------------------


async def give_up(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("then", ["into", "iter", "content"])
async def test_a_cancelled_iteration_loses_nothing(parser, then):
    """What it had received is read first by whoever reads next, and the next request follows."""
    async def handler(request):
        iterator = iter_body(request, 1_000_000)
        pieces = []

        async def take():
            async for view in iterator:
                pieces.append(bytes(view))      # noqa: PERF401 (wanted one by one)
        task = asyncio.ensure_future(take())
        await received(request, HALF)
        await give_up(task)
        half.set()
        if then == "into":
            pieces.append(await READERS["into"](request))
        elif then == "iter":
            await take()
        else:
            pieces.append(await request.content.read())
        return web.Response(text=digest(b"".join(pieces)))

    half = asyncio.Event()
    async with link(handler) as client:
        for _ in range(2):
            half.clear()
            await client.send(head(SIZE) + BODY[:HALF])
            await half.wait()
            await client.send(BODY[HALF:])
            assert await client.response() == (200, digest(BODY))


@pytest.mark.parametrize("then", ["into", "iter", "content", "nothing"])
async def test_a_cancelled_read_leaves_what_it_had_in_the_buffer(parser, then):
    async def handler(request):
        if request.method == "GET":
            return web.Response(text="next")
        buf = bytearray(ROOM)
        task = asyncio.ensure_future(read_body_into(request, buf))
        await received(request, HALF)
        await give_up(task)
        buf.extend(b"mine again")       # nobody exports it any longer
        half.set()
        rest = b""
        if then == "content":
            rest = await request.content.read()
        elif then in READERS:
            rest = await READERS[then](request)
        if rest:
            assert buf[:SIZE - len(rest)] + rest == BODY
        return web.Response(text=then)

    half = asyncio.Event()
    async with link(handler) as client:
        for _ in range(2):
            half.clear()
            await client.send(head(SIZE) + BODY[:HALF])
            await half.wait()
            await client.send(BODY[HALF:] + head(method="GET"))
            assert await client.response() == (200, then)
            assert await client.response() == (200, "next")


@pytest.mark.parametrize("name", OWN)
async def test_timeout(parser, name):
    """Of a client that says nothing more; aiohttp answers 504, and reads the body's rest."""
    async def handler(request):
        if request.method == "POST":
            async with asyncio.timeout(0.05):
                await OWN[name](request)
        return web.Response(text="no body")

    async with link(handler) as client:
        await client.send(head(SIZE) + BODY[:HALF])
        status, _ = await client.response()
        assert status == 504
        await client.send(BODY[HALF:])
        assert await client.ended()         # an error's response closes its connection


async def test_a_piece_that_is_complete_when_its_reader_is_cancelled(parser, loop_factory):
    """The last one of a body too: it is handed out by the next step."""
    async def handler(request):
        iterator = iter_body(request, ROOM)
        task = asyncio.ensure_future(anext(iterator))
        await poll(lambda: request.content._waiter is not None)
        waiter = request.content._waiter
        waiter.add_done_callback(lambda _: task.cancel())   # before the task is woken
        waiting.set()
        await asyncio.wait([task])
        pieces = [] if task.cancelled() else [bytes(task.result())]
        pieces += [bytes(view) async for view in iterator]
        return web.Response(text=digest(b"".join(pieces)))

    waiting = asyncio.Event()
    async with link(handler) as client:
        for _ in range(2):
            waiting.clear()
            await client.send(head(SIZE))
            await waiting.wait()
            await client.send(BODY)
            assert await client.response() == (200, digest(BODY))


@pytest.mark.parametrize("taken", [5_000_000, 21_000_000])
async def test_giving_back_much(parser, taken, loop_factory):
    """More than the parser is fed in one turn: what comes meanwhile waits its turn."""
    body = pattern(22_000_000)

    async def handler(request):
        iterator = iter_body(request)
        count = 0
        start = []
        while count < min(taken, request.content_length):
            start.append(bytes(await anext(iterator)))
            count += len(start[-1])
        rest = await request.content.read()
        return web.Response(text=digest(b"".join([*start, rest])))

    async with link(handler) as client:
        for _ in range(2):
            await client.send(head(len(body)), body + head(0))
            assert await client.response() == (200, digest(body))
            assert await client.response() == (200, digest(b""))


# -- shutdown, TLS ------------------------------------------------------------


@pytest.mark.parametrize("name", OWN)
async def test_shutdown_in_the_middle(parser, name):
    """The handler is told as aiohttp tells it: by a cancellation."""
    async def handler(request):
        reading.append(request)
        try:
            await OWN[name](request)
        except asyncio.CancelledError:
            reading.append("cancelled")
            raise

    reading = []
    with contextlib.ExitStack() as stack:
        async with serving(handler, shutdown_timeout=0.05) as address:
            client = stack.enter_context(connected(address))
            await client.send(head(SIZE) + BODY[:HALF])
            await poll(lambda: reading)
    assert reading[1:] == ["cancelled"]


async def test_tls_goes_the_usual_way(parser, read, contexts):
    async def handler(request):
        return web.Response(text=digest(await read(request)))

    async with serving(handler, ssl=contexts[0]) as address:
        reader, writer = await asyncio.open_connection(
            *address, ssl=contexts[1], server_hostname="localhost")
        for _ in range(2):
            writer.write(post(BODY))
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
            assert (await reader.readexactly(len(digest(BODY)))).decode() == digest(BODY)
        writer.close()
        await writer.wait_closed()


# -- aiohttp with other insides -----------------------------------------------


@pytest.fixture
def forget():
    """What was found out about aiohttp is found out anew, before and after."""
    parsers._aiohttp.cache_clear()
    yield
    parsers._aiohttp.cache_clear()


async def all_went_the_usual_way():
    counts = []

    async def handler(request):
        body = await READERS["into" if request.path == "/into" else "iter"](request)
        counts.append(filled(request))
        return web.Response(text=digest(body))

    async with link(handler) as client:
        for path in ("/into", "/iter"):
            await client.send(head(SIZE, path=path), BODY)
            assert await client.response() == (200, digest(BODY))
    return set(counts) <= {0, None}


@pytest.mark.parametrize("change", ["argument", "attribute", "rehearsal", "handler", "payload"])
async def test_an_aiohttp_that_is_not_known(parser, forget, monkeypatch, change, loop_factory):
    if change == "argument":
        monkeypatch.setattr(parsers, "_KNOWN", parsers._KNOWN - {"auto_decompress"})
    elif change == "attribute":
        absent = "_request_parser" if hasattr(web.RequestHandler, "_parser") else "_parser"
        monkeypatch.setattr(web.RequestHandler, absent, None, raising=False)
    elif change == "rehearsal":
        monkeypatch.setattr(parsers, "_rehearse", lambda make: 1 / 0)
    elif change == "handler":
        monkeypatch.setattr(parsers, "_STATE", (*parsers._STATE, "_no_such_field"))
    else:
        monkeypatch.setattr("zcloop.contrib.body._PAYLOAD_PARTS", ("_no_such_field",))
    assert await all_went_the_usual_way()


@pytest.mark.loops("zcloop")
async def test_a_parser_that_behaves_otherwise_fails_the_rehearsal(parser):
    """Each thing that is relied on is looked at."""
    seen = []

    async def handler(request):
        known = parsers._aiohttp()
        kind = type(getattr(request.protocol, known.attribute))

        def make():
            return known.make(kind, request.protocol, parsers._Stage())
        seen.append(parsers._rehearse(make))

        class Other:
            """A parser that counts one byte too few of a body."""

            def __init__(self):
                self.parser, self.first = make(), True

            def feed_data(self, data):
                data, self.first = (data[:-1] if self.first and b"POST" in data else data), False
                return self.parser.feed_data(data)
        seen.append(parsers._rehearse(Other))
        return web.Response()

    async with link(handler) as client:
        await client.send(head(0))
        assert (await client.response())[0] == 200
    assert seen == [True, False]


# -- what is lent -------------------------------------------------------------


async def test_views_are_released_and_kept_slices_stay(parser):
    async def handler(request):
        views, kept, due = [], [], []
        at = 0
        async for view in iter_body(request, 100_000):
            assert view.readonly and view.format == "B" and view.contiguous
            views.append(view)
            if len(views) % 3 == 0:
                kept.append(view[:])
                due.append(BODY[at:at + len(view)])
            at += len(view)
        for view in views:
            with pytest.raises(ValueError, match="released"):
                bytes(view)
        assert kept and list(map(bytes, kept)) == due
        return web.Response(text=str(at))

    async with link(handler) as client:
        await client.send(post(BODY))
        assert await client.response() == (200, str(SIZE))


async def test_a_view_that_is_exported_is_left_alone(parser):
    """An array over it, say: it keeps its memory, and the iteration goes on in other memory."""
    async def handler(request):
        outer = []
        async for view in iter_body(request, 100_000):
            if not outer:
                outer.append((memoryview(view).cast("B"), bytes(view)))
        assert bytes(outer[0][0]) == outer[0][1] == BODY[:len(outer[0][1])]
        return web.Response(text="ok")

    async with link(handler) as client:
        await client.send(post(BODY))
        assert await client.response() == (200, "ok")


@pytest.mark.parametrize("size", [0, -1])
async def test_a_size_that_is_none(size):
    async def handler(request):
        with pytest.raises(ValueError, match="at least 1"):
            iter_body(request, size)
        return web.Response(text="ok")

    async with link(handler) as client:
        await client.send(head(0))
        assert await client.response() == (200, "ok")


# -- anything at all ----------------------------------------------------------


async def some_reads(request, dice):
    """The whole body, read by many turns of all that can read, some of them given up."""
    parts = []
    iterators = [iter_body(request, size) for size in (1, 1000, 70_000, 300_000)]
    while not request.content.at_eof():
        step = dice.randrange(6)
        if step <= 2:
            parts.append(bytes(await anext(dice.choice(iterators), b"")))
        elif step == 3:
            task = asyncio.ensure_future(anext(dice.choice(iterators), b""))
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                parts.append(bytes(await task))
        elif step == 4:
            parts.append(await request.content.read(dice.choice([1, 5000, 200_000])))
        elif dice.randrange(8) == 0:
            buf = bytearray(ROOM)
            parts.append(bytes(buf[:await read_body_into(request, buf)]))
        else:
            await asyncio.sleep(0)
    return b"".join(parts)


@pytest.mark.parametrize("seed", range(12))
async def test_any_mixture_of_reads(parser, seed):
    """Bodies of any size, in pieces of any size, one behind the other: each comes out whole."""
    dice = random.Random(seed)
    sizes = [dice.choice([0, 1, 70_000, 200_000, 1_000_000, SIZE]) for _ in range(6)]
    stream = memoryview(b"".join(post(BODY[:size]) for size in sizes))

    async def handler(request):
        return web.Response(text=digest(await some_reads(request, random.Random(seed + 1))))

    async def send(client):
        at = 0
        while at < len(stream):
            n = dice.choice([1, 100, 10_000, 100_000, 1_000_000])
            await client.send(stream[at:at + n])
            at += n
            if dice.randrange(4) == 0:
                await asyncio.sleep(0)

    async with link(handler) as client, asyncio.TaskGroup() as group:
        group.create_task(send(client))
        for size in sizes:
            assert await client.response() == (200, digest(BODY[:size]))


def test_the_payload_is_the_public_stream_reader():
    """The type whose fields are read in place is the one that aiohttp documents."""
    assert parsers._aiohttp().payload_type is StreamReader
