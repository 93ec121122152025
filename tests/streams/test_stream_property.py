"""Any mix of reads, cancellations, time-outs, pauses and ways to cut the stream into pieces:
every byte is read once and in order. On a transport whose every move the test decides, and over
real sockets.

The log holds what the reads returned, in the order in which they took it out of the stream; with
what a final read to the end finds it must be the stream. At the end reads that still wait are
cancelled before the rest comes, or the stream ends while they wait.
"""
import asyncio
import collections
import random
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_fakes import FakeTransport, FillingTransport, connected, ticks

from zcloop import reader as reader_module
from zcloop import reader_fill
from zcloop.fast_streams import StreamReaderProtocol
from zcloop.reader import StreamReader

sizes = st.integers(0, 9) | st.integers(20, 90)
# What to do next, as often as it is named.
READS = ["readexactly"] * 4 + ["readinto_exactly"] * 2 + ["read", "readinto", "readview"]
KINDS = ["arrive"] * 9 + ["start"] * 7 + ["tick"] * 6 + [
    "cancel", "time out", "pause", "resume", "resume"]


@st.composite
def one_step(draw):
    kind = draw(st.sampled_from(KINDS))
    if kind == "arrive":
        return kind, draw(st.integers(1, 60))
    if kind == "tick":
        return kind, draw(st.integers(1, 3))
    if kind != "start":
        return kind, None
    other = draw(st.integers(0, 19))
    if other == 0:
        return kind, ("read", -1)
    if other < 5:
        return kind, ("readuntil", draw(st.sampled_from([b"\n", b"ab", (b"a", b"ba")])))
    return kind, (draw(st.sampled_from(READS)), draw(sizes))


@st.composite
def schedules(draw):
    """Steps; in one of eight somebody takes hold of the reader's buffer midway."""
    steps = draw(st.lists(one_step(), min_size=15, max_size=60))
    if draw(st.integers(0, 7)) == 0:
        steps.insert(draw(st.integers(0, len(steps))), ("touch", None))
    return steps


limits = st.sampled_from([4, 16, 2**16])
endings = st.sampled_from(["cancel", "end of file"])


LETTERS = bytes(b"ab\n"[i % 3] for i in range(256))


def make_stream(seed, size):
    return random.Random(seed).randbytes(size).translate(LETTERS)


class Log:
    """Runs reads and notes what each took, at the moment at which it took it."""

    def __init__(self, reader):
        self.reader = reader
        self.data = bytearray()
        self.tasks = []
        self.to_end = None              # the task that reads to the end

    async def run(self, method, value, timeout=None):
        buf = bytearray(value) if method.startswith("readinto") else value
        try:
            async with asyncio.timeout(timeout):
                result = await getattr(self.reader, method)(buf)
                if method.startswith("readinto"):
                    result = buf[:result]
                assert method not in ("readexactly", "readview") or len(result) == value
                self.data += result
        except asyncio.IncompleteReadError as exc:
            self.data += exc.partial
        except asyncio.LimitOverrunError:
            pass                        # nothing is removed
        except TimeoutError:
            pass
        except RuntimeError as exc:
            assert "called while another coroutine" in str(exc)

    def start(self, read, timeout=None):
        """Start a read. Others may be waiting: it is refused then, or takes what is there."""
        waiting = [task for task in self.tasks if not task.done()]
        if waiting and (self.to_end in waiting or read == ("read", -1)):
            return      # that one takes what it finds long before it returns: no order to check
        task = asyncio.create_task(self.run(*read, timeout))
        self.tasks.append(task)
        if read == ("read", -1):
            self.to_end = task

    def cancel(self):
        for task in self.tasks:
            task.cancel()

    async def finish(self):
        """Wait for all of them."""
        for result in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result


async def on_fake_transport(stream, steps, limit, ending, transport_class, kwargs):
    reader, transport = connected(transport_class, limit=limit, **kwargs)
    log = Log(reader)
    rest = stream
    by_hand = False
    for step, value in steps:
        if step == "arrive":
            part, rest = rest[:value], rest[value:]
            if part:
                transport.arrive(part)
        elif step == "start":
            log.start(value)
        elif step == "tick":
            await ticks(value)
        elif step == "cancel":
            log.cancel()
        elif step == "time out":
            log.start(("readexactly", 30), timeout=0)
        elif step == "pause" and transport.is_reading():
            transport.pause_reading()
            by_hand = True
        elif step == "resume" and by_hand and transport.paused and not reader._paused:
            transport.resume_reading()
            by_hand = False
        elif step == "touch":
            assert type(reader._buffer) is bytearray
    if transport.paused and not reader._paused:
        transport.resume_reading()
    log.start(("readexactly", 300))
    await ticks()
    if ending == "cancel":
        log.cancel()
        await log.finish()
        if rest:
            transport.arrive(rest)
    else:
        stream = stream[:len(stream) - len(rest)]
    transport.eof()
    await log.finish()
    log.data += await reader.read()
    assert log.data == stream
    assert reader.at_eof()
    assert getattr(transport, "fill", None) is None
    return transport


TRANSPORTS = {
    "chunks": (FakeTransport, {}),
    "fill": (FillingTransport, {"at_once": False}),
    "fill at once": (FillingTransport, {"at_once": True}),
}


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_every_byte_once_and_in_order(kind, monkeypatch):
    monkeypatch.setattr(reader_module, "FILL_MIN", 8)
    monkeypatch.setattr(reader_fill, "BURST_MAX", 50)
    happened = collections.Counter()
    with asyncio.Runner() as runner:
        @settings(database=None, deadline=None, max_examples=1000)
        @given(st.integers(0, 99), schedules(), limits, endings)
        def check(seed, steps, limit, ending):
            stream = make_stream(seed, 1000)
            transport = runner.run(
                on_fake_transport(stream, steps, limit, ending, *TRANSPORTS[kind]))
            happened.update(transport.happened)
        check()
    # The schedules must have got there, or passing means nothing.
    fills = [] if kind == "chunks" else ["completed", "cancelled", "ended early"]
    if kind == "fill at once":
        fills.append("completed at once")
    for what in ["paused", *fills]:
        assert happened[what] >= 5, happened


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


async def over_sockets(stream, steps, limit, ending, family, scale):
    """The same steps with a peer that writes to a socket; sizes are `scale` times as large."""
    loop = asyncio.get_running_loop()
    ours, peer = socket.socketpair() if family == "unix" else tcp_pair()
    peer.setblocking(False)
    reader = StreamReader(limit, loop)
    protocol = StreamReaderProtocol(reader, loop=loop)
    connect = loop.create_unix_connection if family == "unix" else loop.create_connection
    transport, _ = await connect(lambda: protocol, sock=ours)
    try:
        await converse(stream, steps, ending, scale, reader, transport, peer)
    finally:
        transport.close()
        await protocol._get_close_waiter(None)
        peer.close()
    stats = transport.get_extra_info("zcloop")
    return stats.bytes_filled if stats is not None else 0


async def converse(stream, steps, ending, scale, reader, transport, peer):
    log = Log(reader)
    rest = memoryview(stream)

    def send(n):
        nonlocal rest
        try:
            rest = rest[peer.send(rest[:n]):]
        except BlockingIOError:
            pass                        # our receive buffer is full, and stays so for now

    by_hand = False
    for step, value in steps:
        if step == "arrive":
            send(value * scale)
        elif step == "start":
            method, size = value
            log.start((method, size * scale if type(size) is int and size > 0 else size))
        elif step == "tick":
            await ticks(value)
        elif step == "cancel":
            log.cancel()
        elif step == "time out":
            log.start(("readexactly", 30 * scale), timeout=0)
        elif step == "pause" and transport.is_reading():
            transport.pause_reading()
            by_hand = True
        elif step == "resume" and by_hand:
            transport.resume_reading()
            by_hand = False
        elif step == "touch":
            assert type(reader._buffer) is bytearray
    if by_hand:
        transport.resume_reading()
    log.start(("readexactly", 300 * scale))
    await ticks()
    if ending == "cancel":
        log.cancel()
        await log.finish()
    else:
        stream = stream[:len(stream) - len(rest)]
        rest = b""

    async def send_rest():
        while rest:
            send(len(rest))
            await asyncio.sleep(0)
        peer.shutdown(socket.SHUT_WR)

    sending = asyncio.create_task(send_rest())
    await log.finish()
    log.data += await reader.read()
    await sending
    assert log.data == stream
    assert reader.at_eof()


@pytest.mark.parametrize("family", ["tcp", "unix"])
@pytest.mark.parametrize("scale", [1, 1500])
def test_every_byte_once_and_in_order_over_sockets(loop_factory, family, scale, monkeypatch):
    monkeypatch.setattr(reader_module, "FILL_MIN", 8)
    filled = 0
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        @settings(database=None, deadline=None, max_examples=60)
        @given(st.integers(0, 99), schedules(), limits, endings)
        def check(seed, steps, limit, ending):
            nonlocal filled
            stream = make_stream(seed, 1000 * scale)
            filled += runner.run(
                over_sockets(stream, steps, limit * scale, ending, family, scale))
        check()
    # asyncio's and uvloop's transports can't fill; everything else is the same.
    assert (filled > 0) == (loop_factory.name == "zcloop")
