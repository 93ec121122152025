"""Plain asyncio streams become fast: when, and only when, they are asyncio's own."""
import asyncio
import asyncio.streams
import gc
import weakref

import pytest
from stream_fakes import FakeTransport, FillingTransport, started, ticks

from zcloop import fast_streams
from zcloop.fast_streams import fast_factory, upgrade, upgrade_process, upgrade_reader
from zcloop.reader import FILL_MIN, StreamReader


def plain(limit=2**16, callback=None):
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit, loop)
    return reader, asyncio.StreamReaderProtocol(reader, callback, loop)


async def test_the_objects_themselves_become_fast():
    reader, protocol = plain(limit=123)
    assert upgrade(protocol) is True
    assert type(reader) is StreamReader
    assert type(protocol) is fast_streams.StreamReaderProtocol
    assert protocol._stream_reader is reader
    assert repr(reader) == "<StreamReader limit=123>"
    transport = FillingTransport(protocol)
    protocol.connection_made(transport)
    task = await started(reader.readexactly(2 * FILL_MIN))
    transport.arrive(bytes(2 * FILL_MIN))
    assert await task == bytes(2 * FILL_MIN)
    assert transport.filled == 2 * FILL_MIN


async def test_only_once():
    _, protocol = plain()
    assert upgrade(protocol)
    assert not upgrade(protocol)
    assert not upgrade_reader(protocol._stream_reader)


class OtherReader(asyncio.StreamReader):
    pass


class OtherProtocol(asyncio.StreamReaderProtocol):
    pass


@pytest.mark.parametrize("what", ["reader", "protocol", "no reader", "nothing of the kind"])
async def test_subclasses_stay_what_they_are(what):
    if what == "reader":
        reader = OtherReader()
        protocol = asyncio.StreamReaderProtocol(reader)
    elif what == "protocol":
        reader = asyncio.StreamReader()
        protocol = OtherProtocol(reader)
    elif what == "no reader":
        reader, protocol = None, asyncio.StreamReaderProtocol(None)
    else:
        reader, protocol = None, asyncio.Protocol()
    before = type(protocol), type(reader)
    assert upgrade(protocol) is False
    assert (type(protocol), type(reader)) == before


@pytest.mark.parametrize("touch", [
    lambda r, p: r.feed_data(b"x") or r._buffer,
    lambda r, p: r._buffer,
    lambda r, p: setattr(r, "feed_data", print),
    lambda r, p: setattr(r, "mine", 1),
    lambda r, p: setattr(r, "_waiter", asyncio.get_running_loop().create_future()),
    lambda r, p: setattr(p, "data_received", print),
    lambda r, p: p.connection_made(FakeTransport(p)),
], ids=["fed", "buffer", "feed_data", "field", "waiter", "data_received", "connected"])
async def test_touched_ones_stay_what_they_are(touch):
    reader, protocol = plain()
    held = touch(reader, protocol)
    assert upgrade(protocol) is False
    assert type(reader) is asyncio.StreamReader
    assert type(protocol) is asyncio.StreamReaderProtocol
    del held


@pytest.mark.parametrize("cls, name", [
    (asyncio.StreamReader, "readline"), (asyncio.StreamReader, "feed_data"),
    (asyncio.StreamReader, "new_method"), (asyncio.StreamReaderProtocol, "data_received"),
    (asyncio.StreamWriter, "drain")])
@pytest.mark.parametrize("factory", [False, True])
async def test_patched_classes_stay_what_they_are(monkeypatch, cls, name, factory):
    monkeypatch.setattr(cls, name, lambda self, *args: None, raising=False)
    if factory:
        protocol = fast_factory(await stock_factory())()
        reader = protocol._stream_reader
    else:
        reader, protocol = plain()
        assert upgrade(protocol) is False
    assert type(reader) is asyncio.StreamReader
    assert type(protocol) is asyncio.StreamReaderProtocol
    monkeypatch.undo()
    assert upgrade(protocol) is True


async def test_replaced_names_stay_what_they_are(monkeypatch):
    monkeypatch.setattr(asyncio.streams, "StreamWriter", OtherReader)
    _, protocol = plain()
    assert upgrade(protocol) is False


async def stock_factory(limit=2**16, callback=lambda reader, writer: None, unix=False):
    """The factory that asyncio.start_server gives to the loop."""
    caught = []

    class Loop:
        async def create_server(self, factory, *args, **kwargs):
            caught.append(factory)

        create_unix_server = create_server

        def __getattr__(self, name):
            return getattr(real, name)

    real = asyncio.get_running_loop()
    asyncio._set_running_loop(Loop())
    try:
        if unix:
            await asyncio.start_unix_server(callback, "path", limit=limit)
        else:
            await asyncio.start_server(callback, limit=limit)
    finally:
        asyncio._set_running_loop(real)
    return caught[0]


@pytest.mark.parametrize("unix", [False, True])
async def test_servers_factory_makes_fast_objects_from_the_start(unix):
    called = []
    stock = await stock_factory(99, lambda *streams: called.append(streams), unix)
    factory = fast_factory(stock)
    protocol = factory()
    assert type(protocol) is fast_streams.StreamReaderProtocol
    transport = FakeTransport(protocol)
    protocol.connection_made(transport)
    [(reader, writer)] = called
    assert type(reader) is StreamReader
    assert type(writer) is fast_streams.StreamWriter
    assert repr(reader).startswith("<StreamReader limit=99 transport=")
    assert protocol is not factory()
    transport.close()


async def test_limit_is_checked_where_asyncio_checks_it():
    with pytest.raises(ValueError, match="Limit cannot be <= 0"):
        fast_factory(await stock_factory(0))()


async def test_other_factories_give_what_they_give():
    marker = object()
    assert fast_factory(lambda: marker)() is marker
    assert fast_factory(OtherProtocol.__mro__[-1])() is not None
    reader, protocol = plain()
    assert fast_factory(lambda: protocol)() is protocol
    assert type(reader) is StreamReader

    def fail():
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        fast_factory(fail)()


async def test_server_callback_as_a_coroutine():
    seen = []

    async def serve(reader, writer):
        seen.append((type(writer), await reader.readline()))
        writer.close()

    protocol = fast_factory(await stock_factory(callback=serve))()
    transport = FakeTransport(protocol)
    protocol.connection_made(transport)
    transport.arrive(b"line\n")
    await protocol._task
    assert seen == [(fast_streams.StreamWriter, b"line\n")]
    assert protocol._client_connected_cb is serve
    transport.lose(None)


async def test_attributes_live_in_a_dictionary_of_their_own():
    """Assigning __class__ alone leaves a split one: every access would take four times as long."""
    import sys
    reader, protocol = plain()
    upgrade(protocol)
    fresh = dict(vars(reader))
    assert sys.getsizeof(vars(reader)) >= sys.getsizeof(fresh)
    assert sys.getsizeof(vars(protocol)) >= sys.getsizeof(dict(vars(protocol)))


async def test_a_reader_that_the_program_drops_is_gone():
    """asyncio's protocol holds it weakly, and discards what comes for a reader that is gone."""
    reader, protocol = plain()
    upgrade(protocol)
    transport = FakeTransport(protocol)
    protocol.connection_made(transport)
    transport.arrive(b"for the reader")
    reference = weakref.ref(reader)
    del reader
    gc.collect()
    assert reference() is None
    transport.arrive(b"for nobody")
    assert transport.is_reading()
    transport.lose(None)
    protocol.data_received(b"late")


@pytest.mark.parametrize("received", [b"", b"one\ntwo"])
async def test_reader_that_has_received_already(received):
    reader = asyncio.StreamReader()
    reader.feed_data(received)
    assert upgrade_reader(reader) is True
    reader.feed_data(b"\n")
    reader.feed_eof()
    assert await reader.read() == received + b"\n"


async def test_subprocess_readers():
    loop = asyncio.get_running_loop()
    protocol = asyncio.subprocess.SubprocessStreamProtocol(2**16, loop)

    class Pipes:
        def get_pipe_transport(self, fd):
            return FakeTransport(None) if fd else None

    protocol.connection_made(Pipes())
    protocol.pipe_data_received(1, b"out ")
    upgrade_process(protocol)
    assert type(protocol.stdout) is type(protocol.stderr) is StreamReader
    protocol.pipe_data_received(1, b"put")
    assert await protocol.stdout.read(100) == b"out put"


@pytest.mark.parametrize("protocol", [None, asyncio.SubprocessProtocol()])
async def test_other_subprocess_protocols(protocol):
    upgrade_process(protocol)


async def test_subprocess_without_pipes():
    loop = asyncio.get_running_loop()
    protocol = asyncio.subprocess.SubprocessStreamProtocol(2**16, loop)

    class Pipes:
        def get_pipe_transport(self, fd):
            return None

    protocol.connection_made(Pipes())
    upgrade_process(protocol)
    assert protocol.stdout is None


async def test_a_patched_open_connection_of_the_program_still_works():
    """A program that makes reader and protocol itself, as the documentation suggests."""
    reader, protocol = plain()
    made = fast_factory(lambda: protocol)()
    transport = FillingTransport(made)
    made.connection_made(transport)
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    transport.arrive(b"hello\n")
    assert await reader.readline() == b"hello\n"
    writer.write(b"x")
    await writer.drain()
    writer.close()
    await ticks()
