"""asyncio's streams on zcloop: the public functions, the writer, and the upgrade of plain asyncio ones.

Programs that call ``asyncio.open_connection`` and ``asyncio.start_server`` make their reader
and protocol themselves, before the loop sees them. The loop hands each new protocol to
`upgrade`, which turns both into the classes of this module by assigning ``__class__``: the
object that the program holds already must be the one that becomes fast.
"""

from __future__ import annotations

import asyncio
import asyncio.streams
import sys
from collections.abc import Callable
from typing import Any

from .reader import StreamReader, plain_data_received

__all__ = ("StreamReader", "StreamWriter", "open_connection", "start_server")

_DEFAULT_LIMIT = 2**16


class StreamWriter(asyncio.StreamWriter):
    """An `asyncio.StreamWriter`.

    `writelines` hands the buffers to the transport as they are, and `drain` costs less while
    nothing has to be waited for. `start_tls` keeps what the reader had received before.
    """

    async def drain(self) -> None:
        """Wait until the transport's write buffer is below its low-water mark, if it is not.

        Raises what the connection was lost with; ConnectionResetError if it was closed.
        """
        reader = self._reader
        if reader is not None:
            exc = reader.exception()
            if exc is not None:
                raise exc
        if self._transport.is_closing():
            # Lets connection_lost be called, so that a loop of writes sees the error.
            await asyncio.sleep(0)
        protocol = self._protocol
        if (
            type(protocol) is StreamReaderProtocol
            and not protocol._paused
            and not protocol._connection_lost
        ):
            return
        await protocol._drain_helper()


class StreamReaderProtocol(asyncio.StreamReaderProtocol):
    """asyncio's stream protocol, making `StreamWriter`s and telling the reader about TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
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
        reader = self._stream_reader_wr and self._stream_reader_wr()
        if reader is not None:
            reader.feed_data(data)

    def _replace_writer(self, writer: asyncio.StreamWriter) -> None:  # Python 3.11 and 3.12
        super()._replace_writer(writer)
        self._tell_reader(writer.transport)

    def _replace_transport(self, transport: asyncio.BaseTransport) -> None:  # from 3.13 on
        super()._replace_transport(transport)
        self._tell_reader(transport)

    def _tell_reader(self, transport: asyncio.BaseTransport) -> None:
        # asyncio leaves the reader with the transport below TLS, and pauses that one.
        reader = self._stream_reader
        if isinstance(reader, StreamReader):
            reader._follow_transport(transport)


plain_data_received.add(StreamReaderProtocol.data_received)


async def open_connection(
    host: str | None = None, port: int | None = None, *, limit: int = _DEFAULT_LIMIT, **kwds: Any
) -> tuple[StreamReader, StreamWriter]:
    """Connect; a (reader, writer) pair. Like `asyncio.open_connection`, with the same arguments.

    `limit` (bytes) is the reader's; everything else goes to ``loop.create_connection``,
    which also says what is raised. Works on any event loop; results are filled in place on
    a zcloop one.
    """
    loop = asyncio.get_running_loop()
    reader = StreamReader(limit=limit, loop=loop)
    protocol = StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, host, port, **kwds)
    return reader, StreamWriter(transport, protocol, reader, loop)


async def start_server(
    client_connected_cb: Callable[[StreamReader, StreamWriter], Any],
    host: Any = None,
    port: int | None = None,
    *,
    limit: int = _DEFAULT_LIMIT,
    **kwds: Any,
) -> asyncio.base_events.Server:
    """Serve; like `asyncio.start_server`, with the same arguments.

    `client_connected_cb` is called with a reader and a writer for every connection; if it is
    a coroutine function it runs as a task. `limit` (bytes) is the readers'; everything else
    goes to ``loop.create_server``, which also says what is raised.
    """
    loop = asyncio.get_running_loop()

    def factory() -> StreamReaderProtocol:
        reader = StreamReader(limit=limit, loop=loop)
        return StreamReaderProtocol(reader, client_connected_cb, loop=loop)

    return await loop.create_server(factory, host, port, **kwds)


# What asyncio's classes are made of. A program (or a test) that has replaced a part of them
# wants its part to run, so nothing is upgraded then.
_STOCK = {
    cls: dict(vars(cls))
    for cls in (asyncio.StreamReader, asyncio.StreamReaderProtocol, asyncio.StreamWriter)
}


def _is_stock(cls: type) -> bool:
    """True if `cls` is asyncio's own class and nobody has changed it."""
    stock = _STOCK.get(cls)
    return stock is not None and vars(cls) == stock


def upgrade(protocol: Any) -> bool:
    """Make a new protocol of asyncio's streams, and its reader, fast. True if it was done.

    For the loop: call it with what a protocol factory has returned, before
    ``connection_made``. Done if and only if protocol and reader are of asyncio's own
    unchanged classes, not subclasses, and nobody has fed, read or touched the reader.
    """
    if type(protocol) is not asyncio.StreamReaderProtocol or protocol._transport is not None:
        return False
    if not (_is_stock(asyncio.StreamReaderProtocol) and _is_stock(asyncio.StreamWriter)):
        return False
    if asyncio.streams.StreamWriter is not asyncio.StreamWriter or "data_received" in vars(protocol):
        return False
    if not upgrade_reader(protocol._stream_reader):
        return False
    protocol.__class__ = StreamReaderProtocol
    return True


# The fields of an asyncio.StreamReader. More than these: somebody has patched the object.
_FIELDS = frozenset(
    "_limit _loop _buffer _eof _waiter _exception _transport _paused _source_traceback".split()
)


def upgrade_reader(reader: Any) -> bool:
    """Make an `asyncio.StreamReader` fast, keeping what it has received. True if it was done.

    Done if and only if it is of asyncio's own unchanged class, nobody waits in one of its
    methods, and nobody else holds its ``_buffer``.
    """
    if type(reader) is not asyncio.StreamReader or not _is_stock(asyncio.StreamReader):
        return False
    fields = vars(reader)
    if reader._waiter is not None or not fields.keys() <= _FIELDS:
        return False
    if sys.getrefcount(reader._buffer) > 2:  # the reader's reference, and the argument
        return False
    received = bytes(fields.pop("_buffer"))
    reader.__class__ = StreamReader
    reader._start()
    if received:
        reader._append(received)
    return True


def upgrade_process(protocol: Any) -> None:
    """Make the readers of a subprocess's pipes fast, where `upgrade_reader` allows it.

    For the loop: call it with the protocol of a subprocess after ``connection_made``.
    """
    if type(protocol) is asyncio.subprocess.SubprocessStreamProtocol:
        for reader in (protocol.stdout, protocol.stderr):
            upgrade_reader(reader)
