"""Received pages: what is mapped, what is copied, in which order, and for how long it stays."""
import asyncio
import gc
import mmap
import weakref

import pytest
from page_link import (
    PAGE,
    Keep,
    noise,
    page_link,
    page_listener,
    page_peer,
    poll,
    send_pages,
    send_plain,
    send_small,
)
from support import RecordingBuffered, RecordingProtocol, assert_same, reset, settle

import zcloop
from zcloop.engine import ffi, lib

pytestmark = pytest.mark.loops("zcloop", "zcloop-debug")
DATA = noise(1024 * 1024)


async def test_whole_pages_come_as_views():
    async with page_link(Keep) as (_, protocol, peer):
        await send_pages(peer, DATA)
        await protocol.until(len(DATA))
        assert_same(protocol.data(), DATA)
        stats = protocol.stats()
        assert stats.bytes_mapped >= 0.98 * len(DATA)
        assert stats.bytes_mapped + stats.bytes_copybuf <= stats.bytes_received == len(DATA)


async def test_a_header_and_a_tail_come_by_the_buffer_in_order():
    async with page_link(Keep) as (_, protocol, peer):
        expected = b""
        for size in (8, 1, 5):
            peer.sendall(b"header%d" % size)
            await send_pages(peer, DATA[: size * PAGE])
            peer.sendall(b"tail")
            expected += b"header%d" % size + DATA[: size * PAGE] + b"tail"
        await protocol.until(len(expected))
        assert_same(protocol.data(), expected)
        assert protocol.views >= 1


async def test_views_outlive_the_connection():
    async with page_link(Keep) as (transport, protocol, peer):
        await send_pages(peer, DATA)
        await protocol.until(len(DATA))
        transport.abort()
        await poll(lambda: protocol.ended)
    gc.collect()
    assert_same(protocol.data(), DATA)


async def test_memory_is_given_back_with_the_last_view():
    loop = asyncio.get_running_loop()
    async with page_link(Keep) as (_, protocol, peer):
        before = loop.zcloop_stats().arena_used_bytes
        await send_pages(peer, DATA)
        await protocol.until(len(DATA))
        held = loop.zcloop_stats().arena_used_bytes - before
        assert held == protocol.stats().bytes_mapped
        part = next(p for p in protocol.parts if isinstance(p, memoryview))[100:200]
        expected = bytes(part)
        protocol.parts.clear()
        left = loop.zcloop_stats().arena_used_bytes - before
        assert 0 < left < held
        assert part == expected
        del part
        assert loop.zcloop_stats().arena_used_bytes == before


async def test_a_plain_sender_is_copied():
    async with page_link(Keep) as (_, protocol, peer):
        await send_plain(peer, DATA)
        await protocol.until(len(DATA))
        assert_same(protocol.data(), DATA)


async def test_auto_gives_an_unmappable_stream_a_rest(monkeypatch):
    """And remembers the route: the next connection begins by copying."""
    async with page_link(Keep) as (transport, protocol, peer):
        in_auto(transport)
        for _ in range(8):
            await send_plain(peer, DATA)
        await protocol.until(8 * len(DATA))
        first = protocol.stats()
        assert first.map_backed_off >= 1
        assert first.map_calls < first.recv_calls / 2
    async with page_link(Keep) as (_, protocol, peer):
        await send_plain(peer, DATA[: 128 * 1024])
        await protocol.until(128 * 1024)
        assert protocol.stats().map_calls == 0


def in_auto(transport):
    transport._engine.receive = "auto"
    transport._engine.mapping = ""
    transport._maps = None
    transport._wants_pages()
    transport._route()


class Drop(Keep):
    """Keeps nothing; its own buffer begins `offset` bytes into a page."""

    def __init__(self, offset):
        super().__init__()
        self.buffer = memoryview(mmap.mmap(-1, 17 * PAGE))[offset:]

    def pages_received(self, view):
        self.views += 1
        self.have += len(view)

    def buffer_updated(self, nbytes):
        self.have += nbytes


@pytest.mark.parametrize(("offset", "dear"), [(0, True), (16, False), (32, True)])
async def test_auto_copies_for_a_receiver_that_keeps_nothing(offset, dear):
    async with page_link(lambda: Drop(offset)) as (transport, protocol, peer):
        in_auto(transport)
        lib.zc_engine_set_shifted(transport._engine.c, dear)
        for _ in range(12):
            await send_pages(peer, DATA)
        await protocol.until(12 * len(DATA))
        stats = protocol.stats()
        assert stats.map_not_kept >= 1
        assert stats.bytes_mapped < stats.bytes_received / 2


async def test_auto_goes_on_mapping_where_a_copy_into_the_own_buffer_is_dear():
    async with page_link(lambda: Drop(16)) as (transport, protocol, peer):
        in_auto(transport)
        lib.zc_engine_set_shifted(transport._engine.c, True)
        for _ in range(24):
            await send_pages(peer, DATA)
        await protocol.until(24 * len(DATA))
        stats = protocol.stats()
        assert stats.map_not_kept <= 1  # before the first copy its buffer isn't known
        assert stats.bytes_mapped > stats.bytes_received / 2


async def test_auto_maps_for_a_receiver_that_keeps():
    async with page_link(Keep) as (transport, protocol, peer):
        in_auto(transport)
        for _ in range(12):
            await send_pages(peer, DATA)
        await protocol.until(12 * len(DATA))
        stats = protocol.stats()
        assert stats.map_not_kept == 0
        assert stats.bytes_mapped > 0.9 * stats.bytes_received


async def test_auto_copies_into_a_buffer_that_is_used_again():
    async with page_link(lambda: PageBuffered(64 * PAGE)) as (transport, protocol, peer):
        in_auto(transport)
        for _ in range(4):
            await send_pages(peer, DATA)
        await protocol.received(4 * len(DATA))
        assert_same(protocol.data, DATA * 4)
        assert transport.get_extra_info("zcloop").bytes_mapped <= 64 * PAGE


class PageBuffered(RecordingBuffered):
    """Fills a PageBuffer from its beginning, again and again; keeps copies."""

    def __init__(self, size, **kwargs):
        super().__init__(size, **kwargs)
        self.memory = zcloop.PageBuffer(size)
        self.at = 0
        self.ended = False

    def get_buffer(self, sizehint):
        if self.at == self.memory.nbytes:
            self.at = 0
        return memoryview(self.memory)[self.at:]

    def buffer_updated(self, nbytes):
        self.data += memoryview(self.memory)[self.at:self.at + nbytes]
        self.at += nbytes
        self.note("buffer_updated")

    def connection_lost(self, exc):
        super().connection_lost(exc)
        self.ended = True


@pytest.mark.parametrize("size", [64 * PAGE, 10 * PAGE + 1, 100])
async def test_a_page_buffer_is_filled_in_stream_order(size):
    async with page_link(lambda: PageBuffered(size)) as (transport, protocol, peer):
        expected = b""
        for turn in range(4):
            await send_pages(peer, DATA[: 70 * PAGE])
            peer.sendall(b"odd bytes" * turn)
            expected += DATA[: 70 * PAGE] + b"odd bytes" * turn
        await protocol.received(len(expected))
        assert_same(protocol.data, expected)
        assert (transport.get_extra_info("zcloop").bytes_mapped > 0) == (size > PAGE)


async def test_an_exact_page_buffer_is_woken_for_seldom():
    class Exact(PageBuffered):
        def __init__(self):
            super().__init__(256 * PAGE)
            self.memory = zcloop.PageBuffer(256 * PAGE, exact=True)

    async with page_link(Exact) as (transport, protocol, peer):
        await send_pages(peer, DATA[:4 * PAGE])
        await protocol.received(4 * PAGE)       # from here on it waits for all of it
        for start in range(4 * PAGE, len(DATA), 4 * PAGE):
            await send_pages(peer, DATA[start:start + 4 * PAGE])
        await protocol.received(len(DATA))
        assert_same(protocol.data, DATA)
        stats = transport.get_extra_info("zcloop")
        assert stats.lowat_set >= 2
        assert stats.wakeups <= 16          # of 64 writes


async def test_pausing_in_a_view_holds_back_what_the_call_copied_behind_it():
    class Pausing(Keep):
        def pages_received(self, view):
            super().pages_received(view)
            self.transport.pause_reading()

    async with page_link(Pausing) as (transport, protocol, peer):
        await send_pages(peer, DATA[: 8 * PAGE])
        peer.sendall(b"tail")
        await protocol.until(1)
        have = protocol.have
        await asyncio.sleep(0)
        assert protocol.have == have
        while protocol.have < 8 * PAGE + 4:
            transport.resume_reading()
            await asyncio.sleep(0)
        assert_same(protocol.data(), DATA[: 8 * PAGE] + b"tail")


@pytest.mark.parametrize("kind", [RecordingProtocol, RecordingBuffered, Keep])
async def test_the_protocol_may_change_in_a_view(kind):
    after = kind()
    after.ended = True

    class Changing(Keep):
        def pages_received(self, view):
            super().pages_received(view)
            after.transport = self.transport
            self.transport.set_protocol(after)

    async with page_link(Changing) as (transport, protocol, peer):
        await send_pages(peer, DATA[: 8 * PAGE])
        peer.sendall(b"tail")
        await send_pages(peer, DATA)

        def received():
            return protocol.data() + (after.data() if kind is Keep else bytes(after.data))

        expected = DATA[: 8 * PAGE] + b"tail" + DATA
        await poll(lambda: len(received()) >= len(expected))
        assert_same(received(), expected)
        transport.set_protocol(protocol)


async def test_from_copying_to_pages_and_back():
    """Each half of the stream goes to whoever was the protocol then, whole and in order."""
    first, second = RecordingProtocol(), Keep()
    first.ended = False
    async with page_link(lambda: first) as (transport, _, peer):
        await send_pages(peer, DATA)
        await first.received(len(DATA))
        second.transport = transport
        transport.set_protocol(second)
        await send_pages(peer, DATA)
        await second.until(len(DATA))
        transport.set_protocol(first)
        await send_pages(peer, DATA)
        await first.received(2 * len(DATA))
        assert_same(second.data(), DATA)
        assert second.views > 0
        assert_same(first.data, DATA + DATA)
        transport.abort()
        await first.called("connection_lost")
        first.ended = True


async def test_an_exception_in_a_view_ends_the_connection(loop_errors):
    class Failing(Keep):
        def pages_received(self, view):
            raise ValueError("no")

    async with page_link(Failing) as (_, protocol, peer):
        await send_pages(peer, DATA[: 8 * PAGE])
        await poll(lambda: protocol.ended)
        assert isinstance(protocol.exc, ValueError)
    [context] = loop_errors
    assert "protocol.pages_received() call failed" in context["message"]
    loop_errors.clear()


def test_a_system_exit_in_a_view_loses_nothing(loop_factory):
    class Exiting(Keep):
        exits = 1

        def pages_received(self, view):
            super().pages_received(view)
            if self.exits:
                self.exits -= 1
                raise SystemExit(3)

    loop = loop_factory()
    protocol = Exiting()
    server = loop.run_until_complete(loop.create_server(lambda: protocol, sock=page_listener()))
    peer = page_peer(server.sockets[0].getsockname())
    loop.run_until_complete(poll(lambda: protocol.transport))
    expected = DATA[: 8 * PAGE] + b"tail" + DATA[: 3 * PAGE]

    async def run():
        await send_pages(peer, DATA[: 8 * PAGE])
        peer.sendall(b"tail")
        await send_pages(peer, DATA[: 3 * PAGE])
        await protocol.until(len(expected))

    task = loop.create_task(run())
    with pytest.raises(SystemExit):
        loop.run_until_complete(task)
    loop.run_until_complete(task)
    assert_same(protocol.data(), expected)
    protocol.transport.abort()
    server.close()
    loop.run_until_complete(poll(lambda: protocol.ended))
    peer.close()
    loop.close()


@pytest.mark.parametrize("callback", ["get_buffer", "buffer_updated"])
@pytest.mark.parametrize("exits_in", ["copied", "stashed"])
def test_a_system_exit_while_bytes_are_lent_loses_nothing(loop_factory, callback, exits_in):
    """Copied: behind the pages of one call; stashed: what a pause in a view held back."""
    class Exiting(Keep):
        exits = 1

        def pages_received(self, view):
            super().pages_received(view)
            if exits_in == "stashed" and self.views == 1:
                self.transport.pause_reading()
                asyncio.get_running_loop().call_soon(self.transport.resume_reading)

        def leave(self, name):
            if self.views and name == callback and self.exits:
                self.exits -= 1
                raise SystemExit(3)

        def get_buffer(self, sizehint):
            self.leave("get_buffer")
            return super().get_buffer(sizehint)

        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            self.leave("buffer_updated")

    loop = loop_factory()
    protocol = Exiting(size=100)
    server = loop.run_until_complete(loop.create_server(lambda: protocol, sock=page_listener()))
    peer = page_peer(server.sockets[0].getsockname())
    loop.run_until_complete(poll(lambda: protocol.transport))
    expected = DATA[: 8 * PAGE + 2000] + DATA

    async def run():
        await send_pages(peer, expected[: 8 * PAGE + 2000])
        await protocol.until(8 * PAGE)
        await send_pages(peer, DATA)
        await protocol.until(len(expected))

    task = loop.create_task(run())
    exits = 0
    while not task.done():
        try:
            loop.run_until_complete(task)
        except SystemExit:
            exits += 1
    assert exits == 1
    assert_same(protocol.data(), expected)
    protocol.transport.abort()
    server.close()
    loop.run_until_complete(poll(lambda: protocol.ended))
    peer.close()
    loop.close()


def test_a_paused_connection_stays_paused_after_a_system_exit(loop_factory):
    class Exiting(RecordingProtocol):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()
            raise SystemExit(3)

    async def settled():
        await settle()

    loop = loop_factory()
    protocol = Exiting()
    server = loop.run_until_complete(loop.create_server(lambda: protocol, sock=page_listener()))
    peer = page_peer(server.sockets[0].getsockname())
    loop.run_until_complete(poll(lambda: protocol.transport))
    peer.sendall(b"first")
    with pytest.raises(SystemExit):
        loop.run_until_complete(protocol.received(100))
    peer.sendall(DATA[: 64 * 1024])
    loop.run_until_complete(settled())
    assert protocol.transport.get_extra_info("zcloop").bytes_received == 5
    protocol.transport.abort()
    server.close()
    loop.run_until_complete(protocol.called("connection_lost"))
    peer.close()
    loop.close()


# -- streams ---------------------------------------------------------------------------------


async def stream_pair():
    """(reader, writer, peer) of a connection whose pages can be mapped."""
    made = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda r, w: made.set_result((r, w)), sock=page_listener())
    peer = page_peer(server.sockets[0].getsockname())
    reader, writer = await made
    server.close()
    return reader, writer, peer


async def close_streams(writer, peer):
    peer.close()
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        pass


async def test_readview_maps_messages_behind_headers():
    reader, writer, peer = await stream_pair()
    sizes = [256 * PAGE, 100 * PAGE + 5, 16 * PAGE, 33 * PAGE + 4095]

    async def send():
        for turn in range(12):
            size = sizes[turn % 4]
            send_small(peer, size.to_bytes(8, "big"))
            await send_pages(peer, DATA[:size])
            await asyncio.sleep(0)
        send_small(peer, b"last")

    task = asyncio.create_task(send())
    views = []
    for _turn in range(12):
        size = int.from_bytes(await reader.readexactly(8), "big")
        view = await reader.readview(size)
        assert view.readonly and view.contiguous and len(view) == size
        views.append(view)
    await task
    assert await reader.readexactly(4) == b"last"
    for turn, view in enumerate(views):
        assert_same(view, DATA[: sizes[turn % 4]])
    stats = writer.get_extra_info("zcloop")
    assert stats.bytes_mapped > 0.8 * stats.bytes_received
    await close_streams(writer, peer)
    assert_same(views[0], DATA[: sizes[0]])


async def test_a_cancelled_readview_loses_nothing():
    reader, writer, peer = await stream_pair()
    await send_pages(peer, DATA[: 32 * PAGE])
    assert_same(await reader.readview(32 * PAGE), DATA[: 32 * PAGE])   # views are read from now on
    task = asyncio.create_task(reader.readview(len(DATA)))
    await asyncio.sleep(0)
    await send_pages(peer, DATA[: 100 * PAGE])
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await send_pages(peer, DATA[100 * PAGE:])
    assert_same(await reader.readexactly(10), DATA[:10])
    assert_same(await reader.readview(len(DATA) - 10), DATA[10:])
    await close_streams(writer, peer)


async def test_readview_at_the_end_of_the_stream():
    reader, writer, peer = await stream_pair()
    await send_pages(peer, DATA[: 20 * PAGE])
    peer.shutdown(1)
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await reader.readview(len(DATA))
    assert_same(caught.value.partial, DATA[: 20 * PAGE])
    await close_streams(writer, peer)


async def test_readview_of_a_reset_connection():
    reader, writer, peer = await stream_pair()
    task = asyncio.create_task(reader.readview(len(DATA)))
    await asyncio.sleep(0)
    await send_pages(peer, DATA[: 20 * PAGE])
    await asyncio.sleep(0)
    reset(peer)
    with pytest.raises(ConnectionResetError):
        await task
    await close_streams(writer, peer)


async def test_other_reads_between_views():
    reader, writer, peer = await stream_pair()
    message = b"a line\n" + DATA[: 32 * PAGE] + b"rest"
    for _ in range(3):
        peer.sendall(b"a line\n")
        await send_pages(peer, DATA[: 32 * PAGE])
        peer.sendall(b"rest")
        assert await reader.readline() == message[:7]
        assert_same(await reader.readview(32 * PAGE), DATA[: 32 * PAGE])
        assert await reader.readexactly(1) == b"r"
        got = b""
        while len(got) < 3:
            got += await reader.read(3 - len(got))
        assert got == b"est"
    peer.shutdown(1)
    assert await reader.read() == b""
    await close_streams(writer, peer)


async def test_a_view_in_a_cycle_is_collected():
    async with page_link(Keep) as (_, protocol, peer):
        await send_pages(peer, DATA[: 8 * PAGE])
        await protocol.until(8 * PAGE)

        class Node:
            pass

        node = Node()
        node.me, node.parts = node, protocol.parts
        gone = weakref.ref(node)
        protocol.parts = []
        before = asyncio.get_running_loop().zcloop_stats().arena_used_bytes
        assert before > 0
        del node
        gc.collect()
        assert gone() is None
        after = asyncio.get_running_loop().zcloop_stats().arena_used_bytes
        assert after < before


def page_offset(view):
    """Where in a page its first byte lies."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(view))) % PAGE


class Messages(RecordingBuffered):
    """A PageBuffer for each message, made when its first byte is there; kept."""

    def __init__(self, size, **kwargs):
        super().__init__(size)
        self.size = size
        self.kwargs = kwargs
        self.messages = []
        self.stats = None
        self.have = size
        self.ended = False

    def get_buffer(self, sizehint):
        if self.have == self.size:
            self.messages.append(memoryview(zcloop.PageBuffer(self.size, **self.kwargs)))
            self.have = 0
        return self.messages[-1][self.have:]

    def buffer_updated(self, nbytes):
        self.have += nbytes

    def connection_lost(self, exc):
        self.stats = self.transport.get_extra_info("zcloop")
        super().connection_lost(exc)
        self.ended = True


@pytest.mark.parametrize("exact", [False, True])
async def test_a_fitting_buffer_takes_pages_wherever_its_message_begins(exact):
    size = 40 * PAGE + 1000     # so that each but the first begins in the middle of a page
    count = len(DATA) // size
    shares = {}
    for fit in (True, False):
        async with page_link(lambda: Messages(size, fit=fit, exact=exact)) as link:  # noqa: B023
            _, protocol, peer = link
            await send_pages(peer, DATA[: count * size // PAGE * PAGE + PAGE])
            await poll(lambda: len(protocol.messages) >= count and protocol.have)  # noqa: B023
            peer.close()
            await poll(lambda: protocol.ended)   # noqa: B023
            stats = protocol.stats
            assert_same(b"".join(protocol.messages)[:count * size], DATA[:count * size])
            assert [len(m) for m in protocol.messages[:count]] == [size] * count
            offsets = [page_offset(m) for m in protocol.messages[:count]]
            shares[fit] = stats.bytes_mapped / stats.bytes_received
            assert offsets == [n * size % PAGE if fit else 0 for n in range(count)]
    assert shares[True] >= 0.85 > 0.4 > shares[False], shares


def test_a_fitting_buffer_made_elsewhere_begins_on_a_page():
    view = memoryview(zcloop.PageBuffer(100_000, fit=True))
    assert page_offset(view) == 0 and len(view) == 100_000
