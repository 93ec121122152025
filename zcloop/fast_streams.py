"""What turns asyncio's own streams into fast ones: a protocol, a writer, and the loop's hook.

Programs that call ``asyncio.open_connection`` and ``asyncio.start_server`` make reader,
protocol and writer with asyncio's classes; the loop only sees a protocol factory. It passes
every factory through `fast_factory`, which changes what comes out of it:

  - ``asyncio.start_server`` makes a reader and a protocol for every connection inside the
    factory, where nobody else sees them: objects of this package's classes are made instead.
  - ``asyncio.open_connection`` has made both before and returns the reader to its caller, so
    the very same objects must become fast: their ``__class__`` is assigned.

Either is done only for asyncio's own classes as CPython made them. A subclass, a patched
method, a reader that was used already: everything stays as it is. (What a program does to a
fast reader later is the reader's business: see `zcloop.reader_buffer`.)
"""

from __future__ import annotations

import asyncio
import asyncio.streams
import sys
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from .reader import StreamReader
from .reader_fill import plain_data_received


class StreamWriter(asyncio.StreamWriter):
    """An `asyncio.StreamWriter`.

    `writelines` hands the buffers to the transport as they are, and `drain` costs less while
    nothing has to be waited for. `start_tls` keeps what the reader had received before.
    """

    if TYPE_CHECKING:  # asyncio's own, private fields
        _reader: asyncio.StreamReader | None
        _loop: asyncio.AbstractEventLoop
        _transport: asyncio.WriteTransport
        _protocol: Any

    async def drain(self) -> None:
        """Wait until the transport's write buffer is below its low-water mark, if it is not.

        Raises what the connection was lost with; ConnectionResetError if it was closed.
        """
        reader = self._reader
        if type(reader) is StreamReader:
            exc = reader._exception
        else:
            exc = None if reader is None else reader.exception()
        if exc is not None:
            raise exc
        if self._transport.is_closing():
            # Lets connection_lost be called, so that a loop of writes sees the error.
            await asyncio.sleep(0)
        protocol = self._protocol
        if (
            type(protocol) is not StreamReaderProtocol
            or protocol._paused
            or protocol._connection_lost
        ):
            await protocol._drain_helper()


    def write_zerocopy(self, data: Any) -> asyncio.Future[None]:
        """Send a buffer that isn't copied, where that can be done; in order with `write`.

        A future that is done when nobody reads `data` any more: see
        `StreamTransport.write_zerocopy`, also for what is raised. On a transport without
        that method (of another event loop) a copy is written, and the future is done.
        """
        write = getattr(self._transport, "write_zerocopy", None)
        if write is not None:
            return write(data)  # type: ignore[no-any-return]
        return write_copy(self._transport, data, self._loop)


def write_copy(transport: Any, data: Any, loop: Any) -> asyncio.Future[None]:
    """`write_zerocopy` for transports that can't: the copy is theirs, `data` free at once."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("write_zerocopy() needs a C-contiguous buffer")
    transport.write(view.tobytes())
    future: asyncio.Future[None] = loop.create_future()
    future.set_result(None)
    return future


class StreamReaderProtocol(asyncio.StreamReaderProtocol):
    """asyncio's stream protocol, which makes `StreamWriter`s and tells the reader about TLS."""

    if TYPE_CHECKING:  # asyncio's own, private fields
        _client_connected_cb: Callable[[Any, Any], Any] | None
        _stream_reader_wr: Callable[[], Any] | None
        _stream_reader: asyncio.StreamReader | None
        _transport: Any
        _paused: bool
        _connection_lost: bool

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the transport, once."""
        callback = self._client_connected_cb
        if callback is None:
            super().connection_made(transport)
            return

        def connected(reader: Any, writer: Any) -> Any:
            if type(writer) is asyncio.StreamWriter:
                writer.__class__ = StreamWriter
            return callback(reader, writer)

        self._client_connected_cb = connected
        try:
            super().connection_made(transport)
        finally:
            self._client_connected_cb = callback

    def data_received(self, data: bytes) -> None:
        """Called by the transport. Nobody holds the reader any more: nobody wants the data."""
        reference = self._stream_reader_wr
        if reference is not None:
            reader = reference()
            if reader is not None:
                reader.feed_data(data)

    def _replace_writer(self, writer: asyncio.StreamWriter) -> None:  # Python 3.11 and 3.12
        super()._replace_writer(writer)  # type: ignore[misc]
        self._tell_reader(writer.transport)

    def _replace_transport(self, transport: asyncio.BaseTransport) -> None:  # from 3.13 on
        super()._replace_transport(transport)  # type: ignore[misc]
        self._tell_reader(transport)

    def _tell_reader(self, transport: asyncio.BaseTransport) -> None:
        # asyncio leaves the reader with the transport below TLS, and pauses that one.
        reader = self._stream_reader
        if isinstance(reader, StreamReader):
            reader._follow_transport(transport)


plain_data_received.add(StreamReaderProtocol.data_received)


# -- which objects are asyncio's own ----------------------------------------------------------

_CLASSES = (asyncio.StreamReader, asyncio.StreamReaderProtocol, asyncio.StreamWriter)
_AS_MADE = [dict(vars(cls)) for cls in _CLASSES]

# The fields of an asyncio.StreamReader. One more than these: somebody has patched the object.
_READER_FIELDS = frozenset(
    (
        "_limit",
        "_loop",
        "_buffer",
        "_eof",
        "_waiter",
        "_exception",
        "_transport",
        "_paused",
        "_source_traceback",
    )
)


def _unpatched() -> bool:
    """True if asyncio's stream classes are the ones that were there when this was imported."""
    names = asyncio.streams
    return (names.StreamReader, names.StreamReaderProtocol, names.StreamWriter) == _CLASSES and [
        vars(cls) for cls in _CLASSES
    ] == _AS_MADE


def _become(obj: Any, cls: type, fields: dict[str, Any]) -> None:
    """Make `obj` an instance of `cls` with `fields`.

    The dictionary must be a fresh one. Assigning ``__class__`` leaves the object with one of
    the kind that is split between the instances of its old class, which the interpreter's
    specialised instructions do not know: every access would take four times as long.
    """
    obj.__class__ = cls
    obj.__dict__ = fields


def _exactly(obj: Any, cls: type) -> bool:
    return type(obj) is cls


def upgrade_reader(reader: Any) -> bool:
    """Make an `asyncio.StreamReader` fast, keeping what it has received. True if it was done.

    Done if and only if it is of asyncio's own unpatched class, nobody waits in one of its
    methods, and nobody else holds its ``_buffer``.
    """
    if not (_exactly(reader, asyncio.StreamReader) and _unpatched()):
        return False
    fields = dict(vars(reader))
    if reader._waiter is not None or not fields.keys() <= _READER_FIELDS:
        return False
    buffer = fields.pop("_buffer")
    if sys.getrefcount(buffer) > 3:  # by the reader, by `buffer`, and as the argument
        return False
    _become(reader, StreamReader, fields)
    reader._start()
    if buffer:
        reader._append(bytes(buffer))
    return True


def upgrade(protocol: Any) -> bool:
    """Make a protocol of asyncio's streams, and its reader, fast. True if it was done.

    Done if and only if both are of asyncio's own unpatched classes, and the protocol is new
    (no ``connection_made`` yet), and `upgrade_reader` agrees. Nothing is changed otherwise.
    """
    if not _exactly(protocol, asyncio.StreamReaderProtocol) or protocol._transport is not None:
        return False
    fields = dict(vars(protocol))
    if "data_received" in fields or not upgrade_reader(protocol._stream_reader):
        return False
    _become(protocol, StreamReaderProtocol, fields)
    return True


def upgrade_process(protocol: Any) -> None:
    """Make the readers of a subprocess's pipes fast, where `upgrade_reader` allows it.

    For ``loop.subprocess_exec`` and ``loop.subprocess_shell``: to be called with the protocol
    when ``connection_made`` has been, before the coroutine returns.
    """
    if type(protocol) is asyncio.subprocess.SubprocessStreamProtocol:
        upgrade_reader(protocol.stdout)
        upgrade_reader(protocol.stderr)


# -- the loop's hook --------------------------------------------------------------------------


_FACTORY_CELLS = ("client_connected_cb", "limit", "loop")


def _server_factories() -> frozenset[CodeType]:
    """The code of the factories that asyncio.start_server and start_unix_server define inside."""
    return frozenset(
        code
        for function in (asyncio.start_server, asyncio.start_unix_server)
        for code in function.__code__.co_consts
        if isinstance(code, CodeType) and code.co_freevars == _FACTORY_CELLS
    )


_SERVER_FACTORIES = _server_factories()


def fast_factory(factory: Callable[[], Any]) -> Callable[[], Any]:
    """A protocol factory whose protocols are fast where they are asyncio's own streams.

    For everything of the loop that takes a protocol factory and makes a stream transport.
    Anything else that `factory` makes comes out as it is, whatever it is.
    """
    if getattr(factory, "__code__", None) in _SERVER_FACTORIES:
        cells: Any = factory.__closure__
        callback, limit, loop = (cell.cell_contents for cell in cells)

        def make() -> Any:
            if not _unpatched():
                return factory()
            reader = StreamReader(limit, loop)
            return StreamReaderProtocol(reader, callback, loop)

    else:

        def make() -> Any:
            protocol = factory()
            upgrade(protocol)
            return protocol

    return make
