"""send="auto": one write tries, the kernel's verdict is believed, and each way is counted.

Over loopback the kernel always copies, so the verdict here is always the same; the other one
needs a card (or a fake, as in the tests of the decision itself at the end).
"""
import asyncio

import pytest
from support import RecordingProtocol, assert_same, fill, link, pattern, poll, recv_exactly

import zcloop
from zcloop import zerocopy
from zcloop.engine import lib

SIZE = 200_000


@pytest.fixture(autouse=True)
def no_routes():
    """Each test begins with nothing known."""
    zerocopy._routes.clear()
    yield
    zerocopy._routes.clear()


def run(main, **settings):
    config = zcloop.Config(**settings)
    with asyncio.Runner(loop_factory=lambda: zcloop.new_event_loop(config)) as runner:
        return runner.run(main)


async def pass_on(transport, peer, data):
    transport.write(data)
    assert_same(await recv_exactly(peer, len(data)), data)


def counters(transport):
    return transport.get_extra_info("zcloop")


@pytest.mark.parametrize("data, tried", [
    (pattern(SIZE), 1), (memoryview(pattern(SIZE)), 1), (memoryview(pattern(2 * SIZE))[SIZE:], 1),
    (bytearray(SIZE), 0), (memoryview(bytearray(SIZE)), 0), (memoryview(bytearray(SIZE))
     .toreadonly(), 0), (pattern(1000), 0), (pattern(zerocopy.DEFAULT_THRESHOLD - 1), 0),
    (pattern(zerocopy.DEFAULT_THRESHOLD), 1)], ids=lambda value: type(value).__name__)
def test_only_large_immutable_data(data, tried):
    """A read-only view of a bytearray isn't immutable: its owner may still write."""
    async def main():
        async with link() as (transport, _, peer):
            await pass_on(transport, peer, data)
            assert counters(transport).zerocopy_sends == tried
    run(main())


def test_pieces_of_a_batch_are_judged_one_by_one():
    async def main():
        async with link() as (transport, _, peer):
            pieces = [pattern(50_000, seed=n) for n in range(8)]
            transport.writelines(pieces)
            assert_same(await recv_exactly(peer, 400_000), b"".join(pieces))
            assert counters(transport).zerocopy_sends == 0
    run(main())


def test_copied_turns_it_off_and_is_remembered():
    async def main():
        async with link() as (transport, _, peer):
            await pass_on(transport, peer, pattern(SIZE))
            await poll(lambda: counters(transport).zerocopy_copied)
            for _ in range(5):
                await pass_on(transport, peer, pattern(SIZE))
            stats = counters(transport)
            assert (stats.zerocopy_sends, stats.zerocopy_fallback_route) == (1, 5)
        async with link("tcp-server") as (transport, _, peer):
            await pass_on(transport, peer, pattern(SIZE))
            assert counters(transport).zerocopy_sends == 0
            assert counters(transport).zerocopy_fallback_route == 1
    run(main())


def test_a_route_is_the_same_whoever_asked_for_its_address():
    """Asking for the peer's name changes the form in which the connection keeps it."""
    async def main():
        tried = []
        for asks in False, True, False:
            async with link() as (transport, _, peer):
                if asks:
                    transport.get_extra_info("peername")
                await pass_on(transport, peer, pattern(SIZE))
                if not tried:
                    await poll(lambda: counters(transport).zerocopy_copied)
                tried.append(counters(transport).zerocopy_sends)
        assert tried[0]
        assert tried[1:] == [0, 0]
    run(main())


def test_a_connection_that_ends_with_its_first_large_write_teaches_the_route():
    """Its verdict comes when it has ended already: servers of one answer a connection."""
    async def main():
        loop = asyncio.get_running_loop()
        async with link("tcp-server") as (transport, protocol, peer):
            transport.write(pattern(SIZE))
            transport.close()
            await protocol.called("connection_lost")
            assert counters(transport).zerocopy_sends == 1
            assert_same(await recv_exactly(peer, SIZE), pattern(SIZE))
            await poll(lambda: not loop.zcloop_stats().zerocopy_lingering)
        async with link("tcp-server") as (transport, _, peer):
            await pass_on(transport, peer, pattern(SIZE))
            assert counters(transport).zerocopy_sends == 0
            assert counters(transport).zerocopy_fallback_route >= 1
    run(main())


def test_no_second_write_tries_before_the_verdict():
    async def main():
        async with link() as (transport, protocol, peer):
            data = [pattern(SIZE, seed=n) for n in range(4)]
            for piece in data:
                transport.write(piece)
            transport.close()
            assert_same(await recv_exactly(peer, 4 * SIZE), b"".join(data))
            await protocol.called("connection_lost")
            stats = counters(transport)
            assert stats.zerocopy_sends >= 1          # one write; the kernel may take it in parts
            assert stats.zerocopy_bytes == SIZE
            assert stats.zerocopy_fallback_trial + stats.zerocopy_fallback_route == 3
    run(main())


def test_forced_goes_on_whatever_the_kernel_says():
    async def main():
        async with link() as (transport, _, peer):
            for _ in range(5):
                await pass_on(transport, peer, pattern(SIZE))
            await poll(lambda: counters(transport).zerocopy_copied >= 5)
            assert counters(transport).zerocopy_bytes == 5 * SIZE
    run(main(), send="zerocopy")


def test_copy_never_tries():
    async def main():
        async with link() as (transport, _, peer):
            await pass_on(transport, peer, pattern(SIZE))
            await transport.write_zerocopy(bytes(10))
            stats = counters(transport)
            assert stats.zerocopy_sends == stats.zerocopy_fallback_route == 0
    run(main(), send="copy")


def test_a_unix_socket_says_of_each_write_that_it_cannot():
    async def main():
        async with link("unix-client") as (transport, _, peer):
            for _ in range(3):
                await pass_on(transport, peer, pattern(SIZE))
            assert counters(transport).zerocopy_fallback_unsupported == 3
            assert asyncio.get_running_loop().zcloop_stats().totals.zerocopy_sends == 0
    run(main())


def test_completions_that_nobody_waits_for_are_merged():
    """Many small sends, few readings of the error queue, and all of them in the end."""
    async def main():
        async with link() as (transport, _, peer):
            reading = asyncio.ensure_future(recv_exactly(peer, 1000 * 4096))
            for _ in range(1000):
                transport.write(bytes(4096))
                await asyncio.sleep(0)
            await reading
            await poll(lambda: counters(transport).zerocopy_completed == 1000)
            stats = counters(transport)
            assert stats.zerocopy_sends == 1000
            assert stats.zerocopy_notices < 250
            assert asyncio.get_running_loop().zcloop_stats().zerocopy_pinned == 0
    run(main(), send="zerocopy", zerocopy_threshold=4096)


def test_queued_writes_go_without_a_copy_in_their_turn():
    async def main():
        async with link() as (transport, _, peer):
            before = fill(transport, b"f" * 65536)
            sent = counters(transport).zerocopy_bytes
            transport.write(pattern(SIZE))
            await recv_exactly(peer, before)
            assert_same(await recv_exactly(peer, SIZE), pattern(SIZE))
            assert counters(transport).zerocopy_bytes == sent + SIZE
    run(main(), send="zerocopy", zerocopy_threshold=100_000)


@pytest.mark.loops("zcloop", "zcloop-debug")
async def test_back_pressure_is_the_same():
    async with link("tcp-client", RecordingProtocol) as (transport, protocol, peer):
        transport.write(pattern(20_000_000))
        assert transport.get_write_buffer_size() > 64 * 1024
        assert "pause_writing" in protocol.calls
        assert_same(await recv_exactly(peer, 20_000_000), pattern(20_000_000))
        await protocol.called("resume_writing")


# -- the decision itself --------------------------------------------------------------------------

class Clock:
    """Stands in for the time module."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(zerocopy, "time", clock)
    return clock


def yes():
    return True


def test_true_zero_copy_stays_on():
    conn = zerocopy.ZeroCopy("a", False)
    assert conn.hindrance() == 0
    assert conn.hindrance() == lib.ZC_FALLBACK_TRIAL
    conn.judge(1, 0, yes)
    assert [conn.hindrance() for _ in range(3)] == [0, 0, 0]
    conn.judge(5, 1, yes)                       # later something copies, a packet tap say
    assert conn.hindrance() == lib.ZC_FALLBACK_ROUTE


def test_a_dead_connection_teaches_nothing():
    conn = zerocopy.ZeroCopy("a", False)
    assert conn.hindrance() == 0
    conn.judge(1, 0, lambda: False)
    assert conn.hindrance() == lib.ZC_FALLBACK_TRIAL


def test_tried_again_ever_more_rarely(clock):
    waits = []
    for _ in range(12):
        conn = zerocopy.ZeroCopy("a", False)
        begin = clock.now
        while conn.hindrance():
            clock.now += 1.0
        waits.append(clock.now - begin)
        conn.judge(1, 1, yes)
        assert conn.hindrance() == lib.ZC_FALLBACK_ROUTE
    assert waits[:4] == [0, 10, 20, 40]
    assert waits[-1] == 3600 == max(waits)
    old = zerocopy.ZeroCopy("a", False)         # a connection that lives on tries again, too
    clock.now += 3600
    assert old.hindrance() == 0


def test_success_forgets_the_route(clock):
    conn = zerocopy.ZeroCopy("a", False)
    conn.hindrance()
    conn.judge(1, 1, yes)
    clock.now += 10
    assert conn.hindrance() == 0
    conn.judge(2, 1, yes)
    assert zerocopy.ZeroCopy("a", False).hindrance() == 0
    assert zerocopy._routes == {}


def test_connections_that_find_out_together_count_as_one(clock):
    several = [zerocopy.ZeroCopy("a", False) for _ in range(20)]
    assert [conn.hindrance() for conn in several] == [0] * 20
    for conn in several:
        conn.judge(1, 1, yes)
    clock.now += 10
    assert zerocopy.ZeroCopy("a", False).hindrance() == 0


def test_the_memory_of_routes_is_bounded():
    for address in range(1000):
        conn = zerocopy.ZeroCopy(address, False)
        conn.hindrance()
        conn.judge(1, 1, yes)
    assert len(zerocopy._routes) == zerocopy._ROUTES_MAX
    assert zerocopy.ZeroCopy(999, False).hindrance() == lib.ZC_FALLBACK_ROUTE
    assert zerocopy.ZeroCopy(0, False).hindrance() == 0
