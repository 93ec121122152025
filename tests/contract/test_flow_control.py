"""Back-pressure: water marks, pause_writing and resume_writing."""
import sys

import pytest
from support import (
    RecordingProtocol,
    fill,
    known_gap,
    link,
    poll,
    recv_exactly,
    recv_to_end,
    settle,
)

pytestmark = pytest.mark.parametrize("kind", ["tcp-server", "unix-client"])


@known_gap("uvloop", "its default low-water mark is 16 bytes")
async def test_default_limits(kind):
    async with link(kind) as (transport, _, _):
        assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)


@pytest.mark.parametrize("given, expected", [
    (dict(high=1000), (250, 1000)), (dict(low=1000), (1000, 4000)),
    (dict(high=0), (0, 0)), (dict(high=1000, low=1000), (1000, 1000)),
    (dict(high=1000, low=0), (0, 1000)), (dict(high=None, low=None), (16384, 65536))])
async def test_set_limits(kind, given, expected):
    async with link(kind) as (transport, _, _):
        transport.set_write_buffer_limits(**given)
        assert transport.get_write_buffer_limits() == expected


@pytest.mark.parametrize("given", [dict(high=10, low=11), dict(high=-1), dict(high=5, low=-1)])
async def test_wrong_limits(kind, given):
    async with link(kind) as (transport, _, _):
        before = transport.get_write_buffer_limits()
        with pytest.raises(ValueError, match=r"high \(-?\d+\) must be >= low \(-?\d+\)"):
            transport.set_write_buffer_limits(**given)
        assert transport.get_write_buffer_limits() == before


async def test_size_counts_what_waits(kind):
    async with link(kind) as (transport, _, peer):
        assert transport.get_write_buffer_size() == 0
        sent = fill(transport)
        waiting = transport.get_write_buffer_size()
        assert 0 < waiting <= sent
        transport.write(b"x" * 1000)
        transport.writelines([b"y" * 500, b"z" * 500])
        assert transport.get_write_buffer_size() == waiting + 2000
        assert len(await recv_exactly(peer, sent + 2000)) == sent + 2000
        await poll(lambda: transport.get_write_buffer_size() == 0)


async def test_pause_and_resume_writing(kind):
    async with link(kind) as (transport, protocol, peer):
        transport.set_write_buffer_limits(high=100_000, low=10_000)
        sent = fill(transport)
        while "pause_writing" not in protocol.calls:
            assert transport.get_write_buffer_size() <= 100_000
            transport.write(b"x" * 10_000)
            sent += 10_000
        assert transport.get_write_buffer_size() > 100_000
        transport.write(b"x" * 50_000)
        sent += 50_000
        await settle()
        assert protocol.calls == ["connection_made", "pause_writing"]   # told once
        sizes = []
        protocol.hook = lambda p, name: sizes.append((name, transport.get_write_buffer_size()))
        assert len(await recv_exactly(peer, sent)) == sent
        await protocol.called("resume_writing")
        assert protocol.calls == ["connection_made", "pause_writing", "resume_writing"]
        (name, size), = sizes
        assert name == "resume_writing"
        assert size <= 10_000


async def test_high_zero_pauses_on_any_buffered_byte(kind):
    async with link(kind) as (transport, protocol, peer):
        transport.set_write_buffer_limits(high=0)
        sent = fill(transport)
        assert protocol.calls == ["connection_made", "pause_writing"]
        assert len(await recv_exactly(peer, sent)) == sent
        await protocol.called("resume_writing")
        await settle()
        assert transport.get_write_buffer_size() == 0


async def test_a_write_larger_than_high_pauses(kind):
    async with link(kind) as (transport, protocol, peer):
        transport.write(b"x" * 20_000_000)
        assert "pause_writing" in protocol.calls
        assert len(await recv_exactly(peer, 20_000_000)) == 20_000_000
        await protocol.called("resume_writing")


@known_gap("asyncio", "3.12.0 to 3.13.0 do not look at the water marks in writelines",
           when=(3, 12) <= sys.version_info < (3, 13, 1))
async def test_writelines_pauses(kind):
    async with link(kind) as (transport, protocol, peer):
        transport.writelines([b"x" * 200_000] * 100)
        assert "pause_writing" in protocol.calls
        assert len(await recv_exactly(peer, 20_000_000)) == 20_000_000
        await protocol.called("resume_writing")


async def test_write_inside_pause_writing(kind):
    def hook(protocol, name):
        if name == "pause_writing":
            protocol.transport.write(b"one more")
    async with link(kind, lambda: RecordingProtocol(hook=hook)) as (transport, protocol, peer):
        transport.set_write_buffer_limits(high=0)
        sent = fill(transport)
        assert protocol.calls.count("pause_writing") == 1
        data = await recv_exactly(peer, sent + 8)
        assert data.endswith(b"one more")


async def test_write_inside_resume_writing(kind):
    """A producer that refills from resume_writing: cycles of pause and resume, in step."""
    chunk, rounds = b"r" * 20_000_000, 3

    def hook(protocol, name):
        if name == "resume_writing" and protocol.calls.count("resume_writing") < rounds:
            protocol.transport.write(chunk)
    async with link(kind, lambda: RecordingProtocol(hook=hook)) as (transport, protocol, peer):
        transport.set_write_buffer_limits(high=0)
        transport.write(chunk)
        assert len(await recv_exactly(peer, rounds * len(chunk))) == rounds * len(chunk)
        await protocol.until(lambda: protocol.calls.count("resume_writing") == rounds)
        assert protocol.calls[1:] == ["pause_writing", "resume_writing"] * rounds


async def test_close_inside_pause_writing(kind):
    def hook(protocol, name):
        if name == "pause_writing":
            protocol.transport.close()
    async with link(kind, lambda: RecordingProtocol(hook=hook)) as (transport, protocol, peer):
        transport.write(b"x" * 20_000_000)
        assert transport.is_closing()
        assert len(await recv_to_end(peer)) == 20_000_000
        await protocol.called("connection_lost")
        assert protocol.exc is None


async def test_set_protocol_while_writing_is_paused(kind):
    """The protocol set later is the one that is resumed."""
    async with link(kind) as (transport, first, peer):
        transport.write(b"x" * 20_000_000)
        second = RecordingProtocol()
        transport.set_protocol(second)
        assert len(await recv_exactly(peer, 20_000_000)) == 20_000_000
        await second.called("resume_writing")
        assert "resume_writing" not in first.calls


async def test_lowering_the_limits_under_a_full_buffer_pauses(kind):
    async with link(kind) as (transport, protocol, peer):
        transport.set_write_buffer_limits(high=10_000_000)
        sent = fill(transport)
        assert "pause_writing" not in protocol.calls
        transport.set_write_buffer_limits(high=0)
        await settle()
        assert "pause_writing" in protocol.calls
        assert len(await recv_exactly(peer, sent)) == sent
        await protocol.called("resume_writing")
