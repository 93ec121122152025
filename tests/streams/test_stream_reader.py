"""The reader against asyncio's own, step by step, and the rules that asyncio doesn't have."""
import asyncio
import collections
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_fakes import FakeTransport, FillingTransport, cancelled, connected, started, ticks

from zcloop.reader import StreamReader

# -- the same steps on both readers -------------------------------------------------------------

text = st.text("ab\n", min_size=1, max_size=10).map(str.encode)
separators = st.text("ab\n", min_size=0, max_size=3).map(str.encode)
if sys.version_info >= (3, 13):
    separators = separators | st.lists(separators, max_size=3).map(tuple)
reads = st.one_of(
    st.tuples(st.just("read"), st.integers(-1, 12)),
    st.tuples(st.just("readexactly"), st.integers(-1, 25)),
    st.tuples(st.just("readline")),
    st.tuples(st.just("readuntil"), separators),
    st.tuples(st.just("__anext__")),
)
# What to do next, as often as it is named.
KINDS = ["feed"] * 8 + ["start"] * 7 + ["tick"] * 5 + ["cancel", "eof", "error", "touch"]


@st.composite
def one_step(draw):
    kind = draw(st.sampled_from(KINDS))
    if kind == "feed":
        return kind, draw(text)
    return (kind, draw(reads)) if kind == "start" else (kind,)


steps = st.lists(one_step(), min_size=6, max_size=40)


class Side:
    """One reader, what was started on it, and what came of it."""

    def __init__(self, reader, loop):
        self.reader, self.loop = reader, loop
        self.transport = FakeTransport(None)
        reader.set_transport(self.transport)
        self.tasks = []
        self.ended = False

    def started_to_eof(self, task):
        return task.operation == ("read", -1)

    def step(self, name, *args):
        reader = self.reader
        if name == "start":
            method, *values = args[0]
            task = self.loop.create_task(getattr(reader, method)(*values))
            task.operation = args[0]
            self.tasks.append(task)
        elif name == "feed" and not reader._eof:
            reader.feed_data(args[0])
        elif name == "eof":
            reader.feed_eof()
        elif name == "error":
            reader.set_exception(ConnectionResetError("gone"))
        elif name == "cancel" and self.tasks:
            self.tasks[-1].cancel()

    def seen(self):
        """Everything that a program can see."""
        return ([self.outcome(task) for task in self.tasks], self.reader.at_eof(),
                repr(self.reader.exception()))

    def kind(self, task):
        if task.cancelled():
            return "cancelled"
        return type(task.exception() or task.result()).__name__

    def outcome(self, task):
        if not task.done():
            return "pending"
        if task.cancelled():
            return "cancelled"
        exc = task.exception()
        if exc is None:
            return task.result()
        return (type(exc), str(exc), getattr(exc, "partial", None), getattr(exc, "consumed", None),
                type(exc.__context__), type(exc.__cause__))


async def compare(steps, limit):
    loop = asyncio.get_running_loop()
    sides = [Side(cls(limit, loop), loop) for cls in (asyncio.StreamReader, StreamReader)]
    stock, fast = sides
    for step in steps:
        name = step[0]
        pending = [task for task in stock.tasks if not task.done()]
        to_eof = any(map(stock.started_to_eof, pending))
        if name in ("cancel", "error") and to_eof:
            continue        # asyncio loses what such a read has collected; tested below
        if name == "start" and pending:
            continue        # who of two gets the data is chance; tested below
        if name == "touch":
            assert fast.reader._buffer == stock.reader._buffer or to_eof
            assert fast.reader._buffer is fast.reader._buffer
            continue
        if name == "error" and pending:
            # asyncio never wakes a reader whose data came just before the error. Let it wait first.
            await ticks(3)
        for side in sides:
            if name != "tick":
                side.step(*step)
        if name in ("tick", "start", "eof", "error"):
            await ticks(3)
        if name == "tick":
            assert fast.seen() == stock.seen()
    await ticks(3)
    assert fast.seen() == stock.seen()
    waiting = stock.reader._waiter is not None
    assert (fast.reader._waiter is not None) == waiting
    if not waiting and not stock.reader._eof and stock.reader.exception() is None:
        # (After the end asyncio may leave the transport of an empty reader paused.)
        # Where a read was cancelled that had waited, what had come for it is a backlog at once;
        # asyncio finds that out when the next data come.
        assert fast.transport.paused >= stock.transport.paused
        assert not fast.transport.paused or stock.transport.paused or (
            fast.reader._waiting() > 2 * limit and "cancelled" in fast.seen()[0])
        assert fast.reader._paused == fast.transport.paused
        assert repr(fast.reader).split(" transport=")[0] == \
            repr(stock.reader).split(" transport=")[0]
    for side in sides:
        for task in side.tasks:
            task.cancel()
        await asyncio.gather(*side.tasks, return_exceptions=True)
    assert fast.reader._buffer == stock.reader._buffer or \
        any(map(stock.started_to_eof, stock.tasks))
    return [*map(fast.kind, fast.tasks), *(f"{call}d" for call in fast.transport.calls)]


def test_same_steps_same_results():
    happened = collections.Counter()
    with asyncio.Runner() as runner:
        @settings(database=None, deadline=None, max_examples=1000)
        @given(steps, st.sampled_from([1, 3, 8, 2**16]))
        def check(steps, limit):
            happened.update(runner.run(compare(steps, limit)))
        check()
    # The steps must have got there, or passing means nothing.
    for what in ("bytes", "cancelled", "IncompleteReadError", "LimitOverrunError", "ValueError",
                 "ConnectionResetError", "StopAsyncIteration", "paused", "resumed"):
        assert happened[what] >= 5, happened


# -- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 5, 100])
async def test_second_reader_is_refused(n):
    reader, transport = connected()
    task = await started(reader.read(10))
    for name, args in [("read", (5,)), ("read", ()), ("readexactly", (n,)), ("readuntil", ())]:
        with pytest.raises(RuntimeError) as info:
            await getattr(reader, name)(*args)
        assert str(info.value) == (f"{name}() called while another coroutine is already waiting "
                                   f"for incoming data")
    with pytest.raises(RuntimeError, match=r"^readuntil\(\) called while another"):
        await reader.readline()
    transport.arrive(b"data")
    assert await task == b"data"


async def test_second_reader_that_waits_before_the_first_has_woken():
    """On asyncio the second one is forgotten, and waits for ever."""
    reader, transport = connected()
    first = await started(reader.readexactly(10))
    reader._need = 0
    transport.arrive(b"12345")
    second = asyncio.create_task(reader.readexactly(8))
    await ticks(2)
    transport.arrive(b"67890abcdefgh")
    results = await asyncio.gather(first, second, return_exceptions=True)
    refused = [result for result in results if isinstance(result, RuntimeError)]
    assert len(refused) == 1
    served = next(result for result in results if isinstance(result, bytes))
    assert b"1234567890abcdefgh".startswith(served)


@pytest.mark.parametrize("kind", [FakeTransport, FillingTransport])
async def test_error_together_with_data_wakes_the_reader(kind):
    """Data and a reset in one batch: asyncio's reader, woken by the data, waits for ever."""
    reader, transport = connected(kind)
    task = await started(reader.readuntil(b"\n"))
    transport.arrive(b"12345")
    transport.lose(ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError, match="gone"):
        await task


async def test_cancelling_a_read_to_the_end_loses_nothing():
    reader, transport = connected(limit=4)
    task = await started(reader.read())
    for part in (b"one ", b"two ", b"three ", b"four "):
        transport.arrive(part)
        await ticks(2)
    transport.arrive(b"five")
    await cancelled(task)
    assert await reader.readexactly(8) == b"one two "
    transport.eof()
    assert await reader.read() == b"three four five"


async def test_error_during_a_read_to_the_end_loses_nothing():
    reader, transport = connected()
    task = await started(reader.read())
    transport.arrive(b"one ")
    await ticks(2)
    transport.arrive(b"two")
    transport.lose(ConnectionResetError())
    with pytest.raises(ConnectionResetError):
        await task
    assert reader._buffer == b"one two"


async def test_touched_during_a_read_to_the_end():
    reader, transport = connected()
    task = await started(reader.read())
    transport.arrive(b"one ")
    await ticks(2)
    assert reader._buffer == b""        # the read has it
    transport.arrive(b"two ")
    await ticks(2)
    assert reader._buffer == b""
    await cancelled(task)
    assert reader._buffer == b"one two "
    task = await started(reader.read())
    transport.arrive(b"three")
    transport.eof()
    assert await task == b"one two three"


async def test_read_to_the_end_of_small_pieces():
    reader, transport = connected()
    task = await started(reader.read())
    for _ in range(3000):
        transport.arrive(b"ab")
        await ticks()
    transport.eof()
    assert await task == b"ab" * 3000


async def test_a_waiting_read_that_knows_its_size_is_not_woken_for_less():
    reader, transport = connected(FakeTransport, limit=10)
    task = await started(reader.readexactly(1000))
    for _ in range(9):
        transport.arrive(b"x" * 100)
        assert reader._waiter is not None and not reader._waiter.done()
        assert not transport.paused
    transport.arrive(b"x" * 150)
    assert transport.paused
    assert await task == b"x" * 1000
    assert transport.paused
    assert await reader.read(40) == b"x" * 40
    assert not transport.paused
    assert transport.calls == ["pause", "resume"]


@pytest.mark.parametrize("first", [lambda r: r.readexactly(100),
                                   lambda r: r.readinto_exactly(bytearray(100))])
@pytest.mark.parametrize("second", ["readexactly", "readuntil"])
async def test_a_cancelled_read_leaves_the_next_one_its_transport(first, second):
    """The next reader begins to wait before the cancelled one has run to its end."""
    reader, transport = connected(FakeTransport, limit=10)
    first = await started(first(reader))
    first.cancel()
    transport.arrive(b"x" * 100)            # a backlog, were there nobody to read it
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: loop.call_soon(transport.arrive, b"x" * 99 + b"\n"))
    if second == "readexactly":
        assert len(await reader.readexactly(200)) == 200
    else:
        reader._limit = 1000
        assert len(await reader.readuntil(b"\n")) == 200
    assert first.cancelled()


async def test_what_such_a_read_waits_for_ends_with_it():
    reader, transport = connected(FakeTransport)
    await cancelled(await started(reader.readexactly(1000)))
    task = await started(reader.read(1000))
    transport.arrive(b"x")
    assert await task == b"x"
    await cancelled(await started(reader.readexactly(1000)))
    waiting = await started(reader._wait_for_data("mine"))
    transport.arrive(b"x")
    await waiting


async def test_transport_that_can_not_be_paused():
    class Transport(FakeTransport):
        def pause_reading(self):
            raise NotImplementedError

    reader, transport = connected(Transport, limit=1)
    for _ in range(3):
        transport.arrive(b"abcdef")
    assert reader._transport is None
    assert await reader.readexactly(18) == b"abcdef" * 3


async def test_following_another_transport():
    """What start_tls does: buffered data stays, and back-pressure goes to the new transport."""
    reader, below = connected(limit=4)
    below.arrive(b"0123456789")
    assert below.paused
    above = FakeTransport(below.get_protocol())
    reader._follow_transport(above)
    assert (below.paused, above.paused) == (False, True)
    assert await reader.readexactly(8) == b"01234567"
    assert not above.paused
    above.arrive(b"ab")
    assert await reader.read(10) == b"89ab"


async def test_following_another_transport_while_filling():
    reader, below = connected()
    task = await started(reader.readexactly(100_000))
    below.arrive(b"plain")
    above = FakeTransport(below.get_protocol())
    reader._follow_transport(above)
    assert below.fill is None
    above.arrive(bytes(100_000))
    assert await task == b"plain" + bytes(99_995)


@pytest.mark.parametrize("change", ["extend", "delete", "assign", "clear"])
async def test_changes_of_the_buffer_are_seen(change):
    reader, transport = connected()
    transport.arrive(b"one\ntwo\n")
    if change == "extend":
        reader._buffer.extend(b"three\n")
        want = b"one\ntwo\nthree\n"
    elif change == "delete":
        del reader._buffer[:4]
        want = b"two\n"
    elif change == "assign":
        reader._buffer = bytearray(b"new\n")
        want = b"new\n"
    else:
        reader._buffer.clear()
        want = b""
    assert reader._buffer == want
    transport.arrive(b"last")
    transport.eof()
    assert [line async for line in reader] == [*want.splitlines(keepends=True), b"last"]
    assert reader.at_eof()


@pytest.mark.parametrize("operation", [
    lambda r: r.read(5), lambda r: r.readexactly(5), lambda r: r.readline(),
    lambda r: r.readuntil(b"\n"), lambda r: r.__anext__()])
async def test_touching_the_buffer_while_a_read_waits(operation):
    reader, transport = connected()
    task = await started(operation(reader))
    assert reader._buffer == b""
    reader._buffer.extend(b"by")
    transport.arrive(b"te\nmore")
    assert await task == b"byte\n"
    assert reader._buffer == b"more"


async def test_long_lines_on_the_standard_path():
    reader, transport = connected(limit=4)
    assert reader._buffer == b""
    transport.arrive(b"123456\nabc\n")
    with pytest.raises(ValueError, match="longer than limit"):
        await reader.readline()
    assert await reader.readline() == b"abc\n"
    transport.arrive(b"123456")
    with pytest.raises(ValueError, match="exceed the limit"):
        await reader.readline()
    assert reader._buffer == b""


async def test_bytes_subclasses_and_other_buffers_are_fed():
    class Sub(bytes):
        pass

    reader, _ = connected()
    source = bytearray(b"two ")
    for part in (Sub(b"one "), source, memoryview(b"three")):
        reader.feed_data(part)
    source[:] = b"xxxx"
    assert await reader.read(100) == b"one two three"
    reader.feed_data(Sub(b"alone"))
    data = await reader.read(100)
    assert type(data) is bytes


async def test_fed_after_the_end():
    reader, _ = connected()
    reader.feed_eof()
    with pytest.raises(AssertionError, match="feed_data after feed_eof"):
        reader.feed_data(b"x")


@pytest.mark.parametrize("limit", [0, -1])
async def test_limit_that_is_none(limit):
    with pytest.raises(ValueError, match="Limit cannot be <= 0"):
        StreamReader(limit)


async def test_separators_in_a_tuple_on_every_version():
    reader, transport = connected(limit=8)
    transport.arrive(b"one\r")
    transport.arrive(b"\ntwo\nthree\r\n")
    assert await reader.readuntil((b"\r\n", b"\n")) == b"one\r\n"
    assert await reader.readuntil((b"\r\n", b"\n")) == b"two\n"
    assert await reader.readuntil((b"\r\n", b"\n")) == b"three\r\n"
    with pytest.raises(ValueError, match="at least one element"):
        await reader.readuntil(())
    with pytest.raises(ValueError, match="at least one-byte string"):
        await reader.readuntil((b"", b"x"))
    transport.arrive(b"123456789;")
    with pytest.raises(asyncio.LimitOverrunError) as info:
        await reader.readuntil((b";", b"\r\n"))
    assert info.value.consumed == 9


async def test_line_whose_search_another_reader_disturbs():
    reader, transport = connected()
    task = await started(reader.readuntil(b"--"))
    transport.arrive(b"abcdef-")
    await ticks(2)
    assert await reader.read(6) == b"abcdef"
    transport.arrive(b"-xxxxxxxxxxx")
    assert await task == b"--"
    assert await reader.read(99) == b"xxxxxxxxxxx"


async def test_wait_for_data_as_libraries_call_it():
    reader, transport = connected(limit=1)
    transport.arrive(b"abc")
    assert transport.paused
    task = await started(reader._wait_for_data("mine"))
    assert not transport.paused
    transport.arrive(b"d")
    await task
    assert await reader.read(9) == b"abcd"
