"""Protocol callbacks that raise: who hears of it, and what becomes of the connection."""
import asyncio

import pytest
from support import FACTORIES, RecordingProtocol, known_gap, link, recv_to_end, settle

pytestmark = pytest.mark.parametrize("kind", ["tcp-client", "unix-server"])


def raising(*names):
    def hook(protocol, name):
        if name in names:
            raise ZeroDivisionError(name)
    return hook


def taken(loop_errors, protocol, transport, message=None):
    context = loop_errors.pop()
    assert not loop_errors
    assert isinstance(context["exception"], ZeroDivisionError)
    assert context["transport"] is transport
    assert context["protocol"] is protocol
    return context


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
async def test_delivery(kind, factory, loop_errors):
    name = "data_received" if factory is RecordingProtocol else "buffer_updated"
    async with link(kind, lambda: factory(hook=raising(name))) as (transport, protocol, peer):
        peer.send(b"x")
        await protocol.called("connection_lost")
        context = taken(loop_errors, protocol, transport)
        assert protocol.exc is context["exception"]
        assert protocol.calls == ["connection_made", name, "connection_lost"]


async def test_get_buffer(kind, loop_errors):
    class Raising(FACTORIES["buffered"]):
        def get_buffer(self, sizehint):
            raise ZeroDivisionError
    async with link(kind, Raising) as (_transport, protocol, peer):
        peer.send(b"x")
        await protocol.called("connection_lost")
        assert len(loop_errors) == 1
        loop_errors.clear()
        assert protocol.exc is not None


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
async def test_eof_received(kind, factory, loop_errors):
    async with link(kind, lambda: factory(hook=raising("eof_received"))) as (
            transport, protocol, peer):
        peer.close()
        await protocol.called("connection_lost")
        context = taken(loop_errors, protocol, transport)
        assert protocol.exc is context["exception"]


@known_gap("uvloop", "names the transport's class, not the callback")
@pytest.mark.parametrize("factory, name", [
    (FACTORIES["protocol"], "data_received"), (FACTORIES["buffered"], "buffer_updated"),
    (FACTORIES["protocol"], "eof_received"), (FACTORIES["buffered"], "eof_received")])
async def test_message_names_the_callback(kind, factory, name, loop_errors):
    async with link(kind, lambda: factory(hook=raising(name))) as (_, protocol, peer):
        peer.shutdown(1) if name == "eof_received" else peer.send(b"x")
        await protocol.called("connection_lost")
        messages = [context["message"] for context in loop_errors]
        loop_errors.clear()
        assert messages == [f"Fatal error: protocol.{name}() call failed."]


async def test_pause_writing(kind, loop_errors):
    """Reported, and the connection goes on."""
    async with link(kind, lambda: RecordingProtocol(hook=raising("pause_writing"))) as (
            transport, protocol, peer):
        transport.write(b"x" * 20_000_000)
        context = taken(loop_errors, protocol, transport)
        assert context["message"] == "protocol.pause_writing() failed"
        transport.close()
        assert len(await recv_to_end(peer)) == 20_000_000
        await protocol.called("connection_lost")
        assert protocol.exc is None


async def test_resume_writing(kind, loop_errors):
    async with link(kind, lambda: RecordingProtocol(hook=raising("resume_writing"))) as (
            transport, protocol, peer):
        transport.write(b"x" * 20_000_000)
        transport.write_eof()
        assert len(await recv_to_end(peer)) == 20_000_000
        context = taken(loop_errors, protocol, transport)
        assert context["message"] == "protocol.resume_writing() failed"
        assert not transport.is_closing()


async def test_connection_lost(kind, loop_errors):
    """It is the loop's own callback that fails; the socket is closed all the same."""
    async with link(kind, lambda: RecordingProtocol(hook=raising("connection_lost"))) as (
            transport, protocol, peer):
        transport.close()
        assert await recv_to_end(peer) == b""
        await protocol.called("connection_lost")
        await settle()
        assert len(loop_errors) == 1
        assert isinstance(loop_errors.pop()["exception"], ZeroDivisionError)
        assert protocol.calls.count("connection_lost") == 1


async def test_connection_made(kind, loop_errors):
    """Reported as a failed callback; the transport is what it says, open or closing."""
    async with link(kind, lambda: RecordingProtocol(hook=raising("connection_made"))) as (
            transport, protocol, _):
        for _ in range(5):              # not settle(): its sockets might get the lost number
            await asyncio.sleep(0)
        assert len(loop_errors) == 1
        assert isinstance(loop_errors.pop()["exception"], ZeroDivisionError)
        is_open = transport.get_extra_info("socket").fileno() != -1
        assert is_open or transport.is_closing()
        assert "connection_lost" not in protocol.calls or transport.is_closing()


async def test_other_connections_go_on(kind, loop_errors):
    async with link(kind, lambda: RecordingProtocol(hook=raising("data_received"))) as (
            _, bad, bad_peer), link(kind) as (_, good, good_peer):
        good_peer.send(b"one")
        bad_peer.send(b"x")
        await bad.called("connection_lost")
        good_peer.send(b"two")
        await good.received(6)
        assert len(loop_errors) == 1
        loop_errors.clear()


@known_gap("uvloop", "reports them as errors of the connection")
@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit])
def test_exit_passes_through(kind, fatal, loop_factory):
    """KeyboardInterrupt and SystemExit leave run_until_complete, and the loop can be closed."""
    def hook(protocol, name):
        if name == "data_received":
            raise fatal

    async def main():
        async with link(kind, lambda: RecordingProtocol(hook=hook)) as (_, protocol, peer):
            peer.send(b"x")
            await protocol.called("connection_lost")
    with pytest.raises(fatal), asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
