"""Reads whose result the transport fills in place: one memory, nothing lost, nothing reordered."""
import asyncio
import contextlib
import tracemalloc

import pytest
from stream_fakes import FakeTransport, FillingTransport, cancelled, connected, started, ticks

from zcloop import reader as reader_module
from zcloop.fast_streams import StreamReaderProtocol
from zcloop.reader import FILL_MIN, StreamReader
from zcloop.reader_fill import BURST_MAX

N = 4 * FILL_MIN
DATA = bytes(range(256)) * (N // 256)


async def test_result_is_the_memory_that_was_filled():
    reader, transport = connected()
    buffers = []
    begin = transport._fill_begin

    def remember(buf, *args):
        buffers.append(buf)
        return begin(buf, *args)

    type(transport)._fill_begin, saved = (lambda self, *args: remember(*args)), begin.__func__
    try:
        task = await started(reader.readexactly(N))
        for i in range(0, N, 1000):
            transport.arrive(DATA[i:i + 1000])
            await ticks()
        result = await task
    finally:
        type(transport)._fill_begin = saved
    assert result is buffers[0]
    assert result == DATA
    assert transport.begun == [(0, N)]
    assert (transport.filled, transport.delivered) == (N, 0)


async def test_the_coroutine_wakes_once():
    reader, transport = connected()
    wakes = 0

    class Counting(asyncio.Future):
        def set_result(self, result):
            nonlocal wakes
            wakes += 1
            super().set_result(result)

    loop = asyncio.get_running_loop()

    class Loop:
        create_future = staticmethod(lambda: Counting(loop=loop))

    reader._loop = Loop
    task = await started(reader.readexactly(N))
    for i in range(0, N, 100):
        transport.arrive(DATA[i:i + 100])
        await ticks()
    assert await task == DATA
    assert wakes == 1


async def test_what_was_queued_moves_in_front():
    reader, transport = connected(limit=10)
    transport.arrive(DATA[:7])
    transport.arrive(DATA[7:30])
    assert transport.paused
    task = await started(reader.readexactly(N))
    assert not transport.paused
    transport.arrive(DATA[30:])
    assert await task == DATA
    assert transport.begun == [(30, N)]


async def test_what_has_arrived_already_needs_no_wait():
    reader, transport = connected()
    transport.kernel += DATA
    assert await reader.readexactly(N) == DATA
    assert reader._waiter is None
    assert transport.filled == N


@pytest.mark.parametrize("lacking", [1, FILL_MIN - 1])
async def test_small_reads_are_not_filled(lacking):
    reader, transport = connected()
    task = await started(reader.readexactly(lacking))
    transport.arrive(DATA[:lacking])
    assert await task == DATA[:lacking]
    transport.arrive(DATA[:-lacking])
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[-lacking:])
    assert await task == DATA
    assert transport.begun == []


async def test_nothing_is_delivered_between_completion_and_the_coroutine():
    """More would arrive as chunks, though the coroutine is about to ask for a fill again."""
    reader, transport = connected()

    async def loop():
        return [await reader.readexactly(N) for _ in range(8)]

    task = await started(loop())
    while not task.done():
        if len(transport.kernel) < 3 * N:
            transport.arrive(DATA + DATA)
        await ticks()
    assert task.result() == [DATA] * 8
    assert transport.delivered == 0
    assert transport.filled == 8 * N


async def test_a_result_that_nobody_follows_up_leaves_the_transport_reading():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA)
    await task
    assert transport.is_reading()
    assert "paused" not in repr(reader)


@pytest.mark.parametrize("got", [0, 1, FILL_MIN, N - 1])
@pytest.mark.parametrize("queued", [0, 5])
async def test_cancelling_puts_back_what_was_filled(got, queued):
    reader, transport = connected()
    transport.arrive(DATA[:queued])
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[queued:max(queued, got)])
    await cancelled(task)
    assert transport.fill is None
    transport.arrive(DATA[max(queued, got):])
    assert await reader.readexactly(N) == DATA
    assert reader.at_eof() is False


async def test_time_out_puts_back_what_was_filled():
    reader, transport = connected()
    transport.arrive(b"a")
    with contextlib.suppress(asyncio.TimeoutError):
        async with asyncio.timeout(0):
            await reader.readexactly(N)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(reader.readexactly(N), 0)
    transport.arrive(b"b\n")
    assert await reader.readline() == b"ab\n"


async def test_cancelled_between_completion_and_waking_up():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA + b"after")
    await cancelled(task)
    assert await reader.readexactly(N + 5) == DATA + b"after"


@pytest.mark.parametrize("got", [N - 1, N])
async def test_back_pressure_after_that(got):
    reader, transport = connected(limit=FILL_MIN)
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:got])
    await cancelled(task)
    assert transport.paused
    assert await reader.readexactly(N - FILL_MIN) == DATA[:N - FILL_MIN]
    assert not transport.paused


async def test_completion_then_more_data_then_cancelled():
    """Data fed by hand in the one moment in which a complete fill waits for its coroutine."""
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA)
    reader.feed_data(b"more")
    await cancelled(task)
    assert await reader.readexactly(N + 4) == DATA + b"more"


async def test_completion_then_more_data():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA)
    reader.feed_data(b"more")
    assert await task == DATA
    assert await reader.read(10) == b"more"


async def test_completion_then_end_of_file():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA)
    transport.eof()
    reader.feed_eof()
    assert not reader.at_eof()
    assert await task == DATA
    assert reader.at_eof()


async def test_data_fed_by_hand_while_filling_comes_after_what_was_filled():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:100])
    reader.feed_data(b"by hand")
    await ticks(2)
    transport.arrive(DATA[100:])
    assert await task == (DATA[:100] + b"by hand" + DATA[100:])[:N]
    assert await reader.read(100) == DATA[-7:]


@pytest.mark.parametrize("got", [0, 1000])
async def test_end_of_file_midway(got):
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:got])
    transport.eof()
    with pytest.raises(asyncio.IncompleteReadError) as info:
        await task
    assert info.value.partial == DATA[:got]
    assert type(info.value.partial) is bytes
    assert info.value.expected == N
    assert reader.at_eof()
    assert await reader.read() == b""


async def test_end_of_file_before():
    reader, transport = connected()
    transport.arrive(b"abc")
    transport.eof()
    with pytest.raises(asyncio.IncompleteReadError) as info:
        await reader.readexactly(N)
    assert info.value.partial == b"abc"
    assert transport.begun == []


@pytest.mark.parametrize("got", [0, 1000])
async def test_connection_lost_midway(got):
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:got])
    error = ConnectionResetError("by peer")
    transport.lose(error)
    with pytest.raises(ConnectionResetError) as info:
        await task
    assert info.value is error
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    assert repr(reader).startswith(f"<StreamReader {got} bytes" if got else "<StreamReader exc")


async def test_connection_lost_cleanly_midway():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:10])
    transport.lose(None)
    with pytest.raises(asyncio.IncompleteReadError) as info:
        await task
    assert info.value.partial == DATA[:10]


async def test_exception_set_by_hand_midway():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:10])
    reader.set_exception(ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        await task
    assert transport.fill is None


async def test_second_reader_gets_what_was_filled_as_asyncio_gives_it_what_was_buffered():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:100])
    assert await reader.read(60) == DATA[:60]
    assert await reader.read(60) == DATA[60:100]
    with pytest.raises(RuntimeError, match=r"^read\(\) called while another coroutine is already "
                                           r"waiting for incoming data$"):
        await reader.read(60)
    transport.arrive(DATA)
    assert await task == DATA


@pytest.mark.parametrize("second", ["readexactly", "readinto_exactly"])
async def test_second_reader_that_would_fill(second):
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:100])
    with pytest.raises(RuntimeError, match=rf"^{second}\(\) called while another"):
        await getattr(reader, second)(N if second == "readexactly" else bytearray(N))
    transport.arrive(DATA[100:])
    assert await task == DATA


async def test_touching_the_buffer_midway():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:100])
    assert reader._buffer == DATA[:100]
    assert transport.fill is None
    reader._buffer[:0] = b"in front "
    transport.arrive(DATA[100:])
    assert await task == (b"in front " + DATA)[:N]
    assert type(reader._buffer) is bytearray
    assert reader._buffer == DATA[-9:]


async def test_protocol_changed_midway():
    """As start_tls does it: what was received before stays the reader's."""
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:100])
    old = transport.get_protocol()
    transport.set_protocol(asyncio.Protocol())
    assert reader._waiting() == 100
    transport.arrive(b"not for the reader")
    old.data_received(DATA[100:])
    assert await task == DATA
    assert transport.begun == [(0, N)]


@pytest.mark.parametrize("reason", ["other protocol", "own data_received", "patched data_received",
                                    "own feed_data", "patched feed_data", "paused by hand",
                                    "closing", "slow transport", "touched"])
async def test_the_usual_way_where_filling_would_pass_somebody_over(reason):
    class Protocol(StreamReaderProtocol):
        def data_received(self, data):
            super().data_received(data)

    class Reader(StreamReader):
        def feed_data(self, data):
            super().feed_data(data)

    reader, transport = connected(
        FakeTransport if reason == "slow transport" else FillingTransport,
        reader_class=Reader if reason == "own feed_data" else StreamReader,
        protocol_class=Protocol if reason == "own data_received" else StreamReaderProtocol)
    protocol = transport.get_protocol()
    if reason == "other protocol":
        transport.set_protocol(StreamReaderProtocol(StreamReader()))
    elif reason == "patched data_received":
        protocol.data_received = lambda data: reader.feed_data(data)
    elif reason == "patched feed_data":
        reader.feed_data = lambda data: StreamReader.feed_data(reader, data)
    elif reason == "paused by hand":
        transport.pause_reading()
    elif reason == "closing":
        transport.close()
    elif reason == "touched":
        assert reader._buffer == b""
    task = await started(reader.readexactly(N))
    for i in range(0, N, 1000):
        protocol.data_received(DATA[i:i + 1000])
    assert await task == DATA
    assert not getattr(transport, "begun", None)


async def test_a_subclass_that_leaves_the_way_in_alone_is_filled():
    class Protocol(StreamReaderProtocol):
        def eof_received(self):
            return super().eof_received()

    class Reader(StreamReader):
        def extra(self):
            pass

    reader, transport = connected(reader_class=Reader, protocol_class=Protocol)
    task = await started(reader.readexactly(N))
    transport.arrive(DATA)
    assert await task == DATA
    assert transport.filled == N


async def test_paused_by_hand_while_filling():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.pause_reading()
    transport.arrive(DATA)
    await ticks(3)
    assert not task.done()
    transport.resume_reading()
    assert await task == DATA


@pytest.mark.parametrize("n", [2**40, 2**62, 2**64 + 5, 2**200])
async def test_a_size_that_no_memory_can_hold(n, monkeypatch):
    """A peer that only claims to send as much must not do more harm than on asyncio."""
    if n < 2**62:
        def refuse(nbytes):
            raise MemoryError
        monkeypatch.setattr(reader_module, "uninitialised_bytes", refuse)
    reader, transport = connected()
    task = await started(reader.readexactly(n))
    transport.arrive(DATA)
    await ticks()
    await cancelled(task)
    assert await reader.readexactly(N) == DATA
    task = await started(reader.readexactly(n))
    transport.arrive(b"tail")
    transport.eof()
    with pytest.raises(asyncio.IncompleteReadError) as info:
        await task
    assert info.value.partial == b"tail"


async def test_a_transport_that_refuses_to_fill_loses_nothing():
    reader, transport = connected()
    transport.arrive(b"abc")

    def refuse(self, buf, start, stop, done):
        raise OSError("no")

    begin = FillingTransport._fill_begin
    FillingTransport._fill_begin = refuse
    try:
        with pytest.raises(OSError, match="no"):
            await reader.readexactly(N)
    finally:
        FillingTransport._fill_begin = begin
    assert await reader.read(10) == b"abc"


async def test_a_waiter_woken_by_private_means():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:100])
    reader._wakeup_waiter()
    await ticks()
    assert not task.done()
    transport.arrive(DATA[100:])
    assert await task == DATA


async def test_a_fast_peer_does_not_starve_the_loop():
    reader, transport = connected()
    rounds = 10 * BURST_MAX // N
    others = 0
    running = True

    async def other():
        nonlocal others
        while running:
            others += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(rounds):
        transport.kernel += DATA
        assert await reader.readexactly(N) == DATA
    running = False
    await task
    assert others >= 9
    assert transport.filled == rounds * N


async def test_end_of_file_by_hand_while_filling():
    reader, transport = connected()
    task = await started(reader.readexactly(N))
    transport.arrive(DATA[:100])
    reader.feed_eof()
    assert not reader.at_eof()
    with pytest.raises(asyncio.IncompleteReadError) as info:
        await task
    assert info.value.partial == DATA[:100]
    assert reader.at_eof()


async def test_nothing_is_delivered_while_it_lets_the_loop_run():
    reader, transport = connected()

    async def two():
        return await reader.readexactly(N), await reader.readexactly(N)

    reader._burst = BURST_MAX
    transport.kernel += DATA
    task = await started(two())
    transport.arrive(DATA)
    assert await task == (DATA, DATA)
    assert transport.delivered == 0


@pytest.mark.parametrize("then", ["cancelled", "more", "stolen"])
async def test_what_happens_while_it_lets_the_loop_run(then):
    reader, transport = connected()
    reader._burst = BURST_MAX
    transport.kernel += DATA
    task = await started(reader.readexactly(N))
    if then == "cancelled":
        await cancelled(task)
        assert await reader.readexactly(N) == DATA
    elif then == "more":
        reader.feed_data(b"more")
        assert await task == DATA
        assert await reader.read(5) == b"more"
    else:
        assert await reader.read(100) == DATA[:100]
        await ticks()
        transport.arrive(DATA)
        assert await task == DATA[100:] + DATA[:100]
        assert await reader.read(N) == DATA[100:]
    assert transport.is_reading()


async def test_holds_the_result_once():
    n = 64 * 2**20
    reader, transport = connected()
    transport.arrive(bytes(1000))
    chunk = bytes(2**20)
    tracemalloc.start()
    try:
        task = await started(reader.readexactly(n))
        while not task.done():
            transport.arrive(chunk[:min(len(chunk), n - 1000 - transport.filled)])
            await ticks()
        result = task.result()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(result) == n
    assert peak < n + 4 * 2**20


@pytest.mark.parametrize("size", [1, 7, FILL_MIN, N])
@pytest.mark.parametrize(
    "make", [bytearray, lambda n: memoryview(bytearray(n))], ids=["array", "view"])
async def test_readinto_exactly(size, make):
    reader, transport = connected()
    buf = make(size)
    transport.arrive(DATA[:3])
    task = asyncio.create_task(reader.readinto_exactly(buf))
    await ticks()
    transport.arrive(DATA[3:])
    assert await task == size
    assert buf == DATA[:size]
    assert await reader.readexactly(N - size) == DATA[size:]
    assert bool(transport.begun) == (size - 3 >= FILL_MIN)


async def test_readinto_exactly_takes_any_writable_contiguous_buffer():
    import array
    reader, transport = connected()
    numbers = array.array("I", [0] * (N // 4))
    task = await started(reader.readinto_exactly(numbers))
    transport.arrive(DATA)
    assert await task == N
    assert numbers.tobytes() == DATA


@pytest.mark.parametrize("method", ["readinto", "readinto_exactly"])
@pytest.mark.parametrize("buf", [b"12345", memoryview(bytearray(10))[::2], "text", 5], ids=repr)
async def test_readinto_refuses_other_buffers(method, buf):
    reader, _ = connected()
    reader.feed_data(b"1234567890")
    with pytest.raises(TypeError):
        await getattr(reader, method)(buf)
    assert await reader.read(20) == b"1234567890"


@pytest.mark.parametrize("method", ["readinto", "readinto_exactly"])
async def test_readinto_an_empty_buffer(method):
    reader, _ = connected()
    assert await getattr(reader, method)(bytearray()) == 0


@pytest.mark.parametrize("size", [10, N])
async def test_readinto_exactly_at_the_end(size):
    reader, transport = connected()
    task = await started(reader.readinto_exactly(bytearray(size)))
    transport.arrive(b"abc")
    transport.eof()
    with pytest.raises(asyncio.IncompleteReadError) as info:
        await task
    assert (info.value.partial, info.value.expected) == (b"abc", size)


@pytest.mark.parametrize("got", [1, N - 1, N])
async def test_readinto_exactly_cancelled(got):
    reader, transport = connected()
    buf = bytearray(N)
    task = await started(reader.readinto_exactly(buf))
    transport.arrive(DATA[:got])
    await cancelled(task)
    buf[:] = bytes(N)                       # the reader must not have kept a part of it
    transport.arrive(DATA[got:])
    assert await reader.readexactly(N) == DATA


async def test_readinto_exactly_completion_then_more_data():
    reader, transport = connected()
    buf = bytearray(N)
    task = await started(reader.readinto_exactly(buf))
    transport.arrive(DATA)
    reader.feed_data(b"more")
    assert await task == N
    assert buf == DATA
    assert await reader.read(10) == b"more"


async def test_readinto():
    reader, transport = connected()
    buf = bytearray(10)
    task = await started(reader.readinto(buf))
    transport.arrive(b"abc")
    assert await task == 3
    assert buf == b"abc" + bytes(7)
    transport.arrive(b"0123456789AB")
    transport.arrive(b"CD")
    assert await reader.readinto(memoryview(buf)[5:]) == 5
    assert buf == b"abc\0\x0001234"
    assert await reader.readinto(buf) == 9
    assert buf == b"56789ABCD4"
    task = await started(reader.readinto(buf))
    transport.eof()
    assert await task == 0
    assert await reader.readinto(buf) == 0


async def test_readinto_while_another_waits():
    reader, transport = connected()
    task = await started(reader.readinto(bytearray(10)))
    with pytest.raises(RuntimeError, match=r"^readinto\(\) called while another coroutine"):
        await reader.readinto(bytearray(10))
    transport.arrive(b"a")
    assert await task == 1


@pytest.mark.parametrize("method", ["readinto", "readinto_exactly"])
@pytest.mark.parametrize("when", ["before", "while waiting"])
async def test_readinto_on_the_standard_path(method, when):
    reader, transport = connected()
    buf = bytearray(5)
    if when == "before":
        assert reader._buffer == b""
    task = await started(getattr(reader, method)(buf))
    assert reader._buffer == b""
    transport.arrive(b"hello you")
    assert await task == 5
    assert buf == b"hello"
    assert reader._buffer == b" you"
    assert await reader.readinto(buf) == 4
    transport.eof()
    assert await reader.readinto(buf) == 0


@pytest.mark.parametrize("method", ["readinto", "readinto_exactly", "readview"])
async def test_more_reads_raise_the_exception(method):
    reader, _ = connected()
    reader.feed_data(b"abc")
    reader.set_exception(ConnectionResetError())
    with pytest.raises(ConnectionResetError):
        await getattr(reader, method)(2 if method == "readview" else bytearray(2))


@pytest.mark.parametrize("size", [0, 5, N])
async def test_readview(size):
    reader, transport = connected()
    task = asyncio.create_task(reader.readview(size))
    await ticks()
    transport.arrive(DATA)
    view = await task
    assert type(view) is memoryview
    assert view.readonly and view.contiguous and view.format == "B"
    assert view == DATA[:size]
    await reader.readexactly(N - size)
    transport.arrive(b"later")
    assert view == DATA[:size]
