"""TLS over a zcloop transport: asyncio's SSLProtocol, with a data path of our own.

Handshake, shutdown and state machine are asyncio's.  What runs for each record
is here, because of what it costs there:

* a zeroed receive buffer of 256 KiB in each connection: here a loop has one,
* reads of 256 KiB for records of at most 16, and an exception to say that there
  are no more: here the BIOs are asked,
* a large write encrypted as a whole, into memory that is new each time: here the
  transport gets batches until it has enough, and the rest waits as it is.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .page_memory import put_bytes
from .pieces import flat, own
from .receive import wants_buffers

if TYPE_CHECKING:
    _SSLProtocol = Any  # most of it isn't in the stubs
else:
    _SSLProtocol = sslproto.SSLProtocol

__all__ = ["TlsProtocol", "start_tls"]

_RECORD = 16 * 1024
"""Bytes of plaintext that a record holds at most (RFC 8446, 5.1)."""

_BATCH = 7 * _RECORD
"""Bytes to encrypt and give to the transport at a time.  Encrypted they are below the 128 KiB
from which malloc asks the system for new memory each time; fewer would mean more wake-ups."""

_RECEIVE = 128 * 1024
_FATAL = "Fatal error on SSL protocol"
_AGAIN = (ssl.SSLWantReadError, ssl.SSLSyscallError)
_DO_HANDSHAKE: Any = sslproto.SSLProtocolState.DO_HANDSHAKE
_WRAPPED: Any = sslproto.SSLProtocolState.WRAPPED
_FLUSHING: Any = sslproto.SSLProtocolState.FLUSHING

_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()
"""Where each loop's TLS connections receive.  One buffer does: what ``get_buffer`` gave is
filled at once, and the ``buffer_updated`` that follows empties it before it does anything else."""


class SSLTransport(sslproto._SSLProtocolTransport):
    """asyncio's transport of a TLS connection, and :meth:`write_zerocopy`.

    (Some programs, CPython's tests among them, know one by the "ssl" in its class's name.)
    """

    def write_zerocopy(self, data: Any) -> asyncio.Future[None]:
        """Send a buffer; what encrypting leaves of it to be sent later is a copy.

        The future is done at once.  Raises :exc:`BufferError` for a buffer that isn't
        C-contiguous, and otherwise as :meth:`write`.
        """
        view = memoryview(data)
        if not view.c_contiguous:
            raise BufferError("write_zerocopy() needs a C-contiguous buffer")
        self.write(flat(view) if view.nbytes else b"")
        future: asyncio.Future[None] = self._loop.create_future()
        future.set_result(None)
        return future


class TlsProtocol(_SSLProtocol):  # type: ignore[misc]
    """asyncio's TLS protocol, for transports that queue what the kernel doesn't take.

    Invariant: what waits in ``_write_backlog`` is immutable, except for what was written by
    calls that haven't returned: its newest pieces.  It waits because the handshake isn't over,
    the transport is above its high-water mark, or OpenSSL has to read first.
    """

    max_size = 0  # of a buffer of asyncio's that isn't used

    def __init__(self, loop: asyncio.AbstractEventLoop, *args: Any, **kwargs: Any) -> None:
        super().__init__(loop, *args, **kwargs)
        buffer = _buffers.get(loop)
        if buffer is None:
            buffer = _buffers[loop] = memoryview(bytearray(_RECEIVE))
        self._ssl_buffer_view = buffer
        self._appended = 0  # pieces that ever came into the backlog

    def _get_app_transport(self) -> Any:
        transport = super()._get_app_transport()
        transport.__class__ = SSLTransport
        return transport

    def _set_app_protocol(self, app_protocol: Any) -> None:
        super()._set_app_protocol(app_protocol)
        self._app_protocol_is_buffer = wants_buffers(app_protocol)
        if self._app_protocol_is_buffer:
            self._app_protocol_get_buffer = app_protocol.get_buffer
            self._app_protocol_buffer_updated = app_protocol.buffer_updated

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what waits; the application's protocol is told soon."""
        self._write_buffer_size = 0
        super().connection_lost(exc)

    # -- receiving ------------------------------------------------------------

    def get_buffer(self, n: int) -> memoryview:
        """Where to receive: the loop's buffer, however much is asked for."""
        return self._ssl_buffer_view

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received out of the buffer, and go on."""
        if self._state is _WRAPPED:
            self._incoming.write(self._ssl_buffer_view[:nbytes])
            self._do_read()
        else:
            super().buffer_updated(nbytes)

    def _do_read(self) -> None:
        if self._state is not _WRAPPED and self._state is not _FLUSHING:
            return
        try:
            if not self._app_reading_paused:
                if self._app_protocol_is_buffer:
                    self._do_read__buffered()
                else:
                    self._do_read__copied()
            if self._write_backlog:
                self._do_write()
            elif self._outgoing.pending:
                self._process_outgoing()
            if self._incoming.pending or self._ssl_reading_paused:
                self._control_ssl_reading()
        except Exception as exc:
            self._fatal_error(exc, _FATAL)

    def _do_read__copied(self) -> None:
        incoming = self._incoming
        sslobj = self._sslobj
        first = chunk = None
        chunks: list[bytes] | None = None
        try:
            while size := incoming.pending or sslobj.pending():
                chunk = sslobj.read(size if size < _RECORD else _RECORD)
                if not chunk:
                    break
                if first is None:
                    first = chunk
                elif chunks is None:
                    chunks = [first, chunk]
                else:
                    chunks.append(chunk)
        except _AGAIN:
            pass
        if first is not None:
            self._app_protocol.data_received(first if chunks is None else b"".join(chunks))
        if chunk is not None and not chunk:
            self._end_reading()

    def _do_read__buffered(self) -> None:
        incoming = self._incoming
        sslobj = self._sslobj
        size = incoming.pending + sslobj.pending()
        if not size:
            return
        end = 0
        count = None
        # As a view: a slice of a bytearray would be a copy, and what is read into it lost.
        with memoryview(self._app_protocol_get_buffer(size)).cast("B") as view:
            if not view:
                raise RuntimeError("get_buffer() returned an empty buffer")
            try:
                while incoming.pending or sslobj.pending():
                    if view.readonly:  # a PageBuffer; put_bytes complains about all others
                        chunk = sslobj.read(len(view) - end)
                        count = put_bytes(view[end:], chunk) if chunk else 0
                    else:
                        count = sslobj.read(len(view) - end, view[end:])
                    if not count:
                        break
                    end += count
                    if end == len(view):
                        self._loop.call_soon(self._do_read)
                        break
            except _AGAIN:
                pass
        if end:
            self._app_protocol_buffer_updated(end)
        if count == 0:
            self._end_reading()

    def _end_reading(self) -> None:
        """The peer has sent its close_notify."""
        self._call_eof_received()
        self._start_shutdown()

    # -- sending --------------------------------------------------------------

    def _write_appdata(self, list_of_data: Iterable[Any]) -> None:
        if (
            type(list_of_data) is tuple  # from write(): one piece
            and type(piece := list_of_data[0]) is bytes
            and len(piece) <= _RECORD
            and self._state is _WRAPPED
            and not (self._write_backlog or self._ssl_writing_paused)
        ):
            try:
                self._sslobj.write(piece)
                self._transport.write(self._outgoing.read())
                return
            except _AGAIN:
                pass
            except Exception as exc:
                self._fatal_error(exc, _FATAL)
                return
        self._write_pieces(list_of_data)

    def _write_pieces(self, list_of_data: Iterable[Any]) -> None:
        if self._state is not _WRAPPED and self._state is not _DO_HANDSHAKE:
            super()._write_appdata(list_of_data)  # counts it, and drops it
            return
        pieces = [p if type(p) is bytes else flat(memoryview(p)) for p in list_of_data]
        if len(pieces) > 1 and sum(map(len, pieces)) <= _RECORD:
            pieces = [b"".join(pieces)]
        backlog = self._write_backlog
        before = self._appended
        for piece in pieces:
            if piece:
                backlog.append(piece)
                self._appended += 1
                self._write_buffer_size += len(piece)
        try:
            if self._state is _WRAPPED:
                self._write_or_fail()
        finally:
            # Sending may have called pause_writing(), which may have written, behind our pieces.
            for i in range(max(0, len(backlog) - (self._appended - before)), len(backlog)):
                backlog[i] = own(backlog[i])

    def _write_or_fail(self) -> None:
        try:
            self._do_write()
        except Exception as exc:
            self._fatal_error(exc, _FATAL)

    def _do_write(self) -> None:
        """Encrypt and send the backlog until the transport has enough."""
        backlog = self._write_backlog
        write = self._sslobj.write
        outgoing = self._outgoing
        try:
            while backlog and not self._ssl_writing_paused:
                piece = backlog[0]
                count = write(piece if len(piece) <= _BATCH else memoryview(piece)[:_BATCH])
                self._write_buffer_size -= count
                if count < len(piece):
                    backlog[0] = memoryview(piece)[count:]
                else:
                    del backlog[0]
                if outgoing.pending >= _BATCH:
                    if self._transport.is_closing():
                        break
                    self._transport.write(outgoing.read())
        except _AGAIN:
            pass
        self._process_outgoing()

    # -- the transport's water marks ------------------------------------------

    def pause_writing(self) -> None:
        """Send no more until :meth:`resume_writing`; but what ends a connection goes at once."""
        self._ssl_writing_paused = self._state is _WRAPPED or self._state is _DO_HANDSHAKE

    def resume_writing(self) -> None:
        """Go on, with what waits first."""
        self._ssl_writing_paused = False
        if self._write_backlog and self._state is _WRAPPED:
            self._write_or_fail()
        else:
            self._process_outgoing()

    def _do_flush(self) -> None:
        # The transport sends all that it is given before it closes.
        self._ssl_writing_paused = False
        super()._do_flush()


async def start_tls(
    loop: asyncio.AbstractEventLoop,
    transport: Any,
    protocol: asyncio.BaseProtocol,
    sslcontext: ssl.SSLContext,
    **options: Any,
) -> asyncio.Transport:
    """Upgrade a connection to TLS; returns the transport to use from then on.

    ``options`` are those of ``loop.start_tls``.  Raises :exc:`TypeError` for a
    transport or context that can't, and what the handshake raises.
    """
    if not isinstance(sslcontext, ssl.SSLContext):
        raise TypeError(
            f"sslcontext is expected to be an instance of ssl.SSLContext, got {sslcontext!r}"
        )
    if not getattr(transport, "_start_tls_compatible", False):
        raise TypeError(f"transport {transport!r} is not supported by start_tls()")
    waiter = loop.create_future()
    tls = TlsProtocol(loop, protocol, sslcontext, waiter, call_connection_made=False, **options)
    # Nothing may reach the TLS protocol before its connection_made has run.
    transport.pause_reading()
    transport.set_protocol(tls)
    made = loop.call_soon(tls.connection_made, transport)
    resumed = loop.call_soon(transport.resume_reading)
    try:
        await waiter
    except BaseException:
        transport.close()
        made.cancel()
        resumed.cancel()
        raise
    upgraded: asyncio.Transport = tls._app_transport
    return upgraded
