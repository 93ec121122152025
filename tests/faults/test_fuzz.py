"""Random echo conversations over real sockets: every byte once, in order.

The script of a conversation is drawn by hypothesis: the sizes of the peer's sends, how the
protocol takes them (either kind, any buffer size), and what it does between them: pause, resume,
hand over to another protocol, write in pieces, shrink the water marks.
"""
import asyncio
import contextlib

import hypothesis
import hypothesis.strategies as st
import pytest
from support import assert_same, link, pattern, recv_exactly, settle

STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 65536)),
    st.tuples(st.just("send"), st.integers(1, 64)),
    st.tuples(st.just("pause"), st.integers(1, 3)),
    st.tuples(st.just("swap to protocol"), st.just(0)),
    st.tuples(st.just("swap to buffered"), st.sampled_from([1, 7, 1000, 65536, 300_000])),
    st.tuples(st.just("marks"), st.sampled_from([0, 1, 5000, 65536])),
    st.tuples(st.just("turn"), st.integers(1, 3)),
)


class Echo:
    """Shared state of one conversation: whichever protocol is set appends here and echoes."""

    def __init__(self, split):
        self.received = bytearray()
        self.split = split
        self.paused = False

    def take(self, transport, data):
        self.received += data
        if self.split == 0:
            transport.write(bytes(data))
        elif self.split == 1:
            mutable = bytearray(data)
            transport.write(mutable)
        else:
            step = max(1, len(data) // self.split)
            transport.writelines([bytes(data[n:n + step]) for n in range(0, len(data), step)])


class Plain(asyncio.Protocol):
    def __init__(self, echo):
        self.echo = echo
        self.calls = []
        self.transport = None
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.echo.take(self.transport, data)

    def connection_lost(self, exc):
        self.lost.set_result(exc)

    async def called(self, name):
        await self.lost


class Buffered(Plain, asyncio.BufferedProtocol):
    def __init__(self, echo, size):
        super().__init__(echo)
        self.buffer = bytearray(size)

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.echo.take(self.transport, self.buffer[:nbytes])


async def converse(kind, split, steps):
    loop = asyncio.get_running_loop()
    echo = Echo(split)
    async with link(kind, lambda: Plain(echo)) as (transport, _, peer):
        sent, expected = bytearray(), sum(n for what, n in steps if what == "send")
        data = pattern(expected)
        back = asyncio.ensure_future(recv_exactly(peer, expected)) if expected else None
        for what, n in steps:
            if what == "send":
                piece = data[len(sent):len(sent) + n]
                sent += piece
                # A paused transport takes nothing: don't wait for it to.
                with contextlib.suppress(BlockingIOError):
                    piece = piece[peer.send(piece):]
                if piece:
                    transport.resume_reading()
                    await loop.sock_sendall(peer, piece)
            elif what == "pause":
                transport.pause_reading()
                await settle(n)
            elif what.startswith("swap"):
                new = Plain(echo) if what.endswith("protocol") else Buffered(echo, n)
                new.transport = transport
                transport.set_protocol(new)
            elif what == "marks":
                transport.set_write_buffer_limits(high=n)
            else:
                transport.resume_reading()
                await settle(n)
        transport.resume_reading()
        if back:
            assert_same(await back, data)
        assert_same(echo.received, data)


@pytest.mark.parametrize("kind", ["tcp-server", "unix-client"])
def test_echo(loop_factory, kind):
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        failures = []
        runner.get_loop().set_exception_handler(lambda loop, context: failures.append(context))

        @hypothesis.settings(max_examples=40, deadline=None, database=None, derandomize=True,
                             suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(split=st.integers(0, 40), steps=st.lists(STEPS, min_size=10, max_size=60))
        def run(split, steps):
            runner.run(converse(kind, split, steps))
            assert not failures
        run()
