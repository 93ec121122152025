"""A request's body past aiohttp's parser, from the socket into the caller's memory.

What aiohttp does with a body: the transport makes ``bytes`` of what it receives, the parser
copies a slice of each into further ``bytes``, and a ``StreamReader`` (the *payload*) queues
those until the handler takes them.  In the C parser nothing can be taken past it: how much of
the body is still to come is in a C structure that no Python code reaches.

What we do, once the handler has asked for the body, and the payload's queue is empty:

* *take over*: have the transport fill the caller's memory (``_fill_begin``), and keep it
  paused in between, so that the parser gets nothing.  The parser now lags behind.
* *finish*: when the last byte of the body is there, and before any other may come, the
  connection gets a new parser, which starts between two messages as the old one would have.
  Then the payload is told that it is complete.  No cost for each byte.
* *give back*: somebody else reads the payload (``request.content``; aiohttp itself, when the
  handler has returned early).  The old parser is fed as many zeros as we took, which are
  thrown away, and the transport goes on as if nothing had been.  That costs one small copy a
  byte taken, 4 MiB a turn of the loop.

How we learn that somebody else reads: a reader that has to wait enters the payload's timer
(``with self._timer``), and while we have the body, we are that timer.  We ourselves wait as
the payload's own readers do, in its ``_waiter``, so that losing the connection, a shutdown and
a second reader end in the same exceptions as there.

Invariants while we have the body:
  - the payload's queue is empty.  Whoever takes something out of it resumes the transport;
  - the transport is paused, or filling for us;
  - ``left`` is what is still to be received, ``_owed`` what the parser lacks of the rest,
    ``_unread`` what a cancelled iteration has received and nobody has seen.

Rejected: another protocol on the transport for the time of the body (needs the new parser as
well); feeding the parser zeros all the way (a copy a byte, half of what receiving costs);
a parser of our own in front of aiohttp's (a cost for each request without a body).
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from .parsers import exchange_for

__all__ = ["TakenBody", "take_over"]

_LEAST = 64 * 1024
"""Bytes to come from which on taking over pays."""

_PATIENCE = 0.02
"""Seconds without news after which a piece is handed out as it is."""

_ZEROS = bytes(64 * 1024)
_ZEROS_A_TURN = 64
_PAYLOAD_PARTS = ("_buffer", "_buffer_offset", "_cursor", "_size", "_timer", "_waiter")


def take_over(request: Any) -> TakenBody | None:
    """The body of a request, if all that is left of it can be received past the parser now.

    None where it has to be read the usual way, or where the payload's queue isn't empty.
    """
    payload = request.content
    timer = getattr(payload, "_timer", None)
    if type(timer) is TakenBody:
        return timer if timer.is_ready() else None
    transport = request.transport
    if not hasattr(type(transport), "_fill_begin"):
        return None
    if not _is_plain(request) or not all(hasattr(payload, name) for name in _PAYLOAD_PARTS):
        return None
    left = (request.content_length or 0) - payload.total_bytes
    if left < _LEAST or payload._size or payload.is_eof() or payload.exception() is not None:
        return None
    protocol = request.protocol
    if transport.is_closing() or transport.get_protocol() is not protocol:
        return None
    if payload._waiter is not None or payload.get_read_buffer_limits()[1] < len(_ZEROS):
        return None
    if not transport._can_fill:  # bytes of the body are on their way to the parser
        return None
    exchange = exchange_for(protocol, payload)
    return None if exchange is None else TakenBody(payload, protocol, transport, left, exchange)


def _is_plain(request: Any) -> bool:
    """Whether each byte after the headers is one of the body, as many as Content-Length says."""
    headers = request.headers
    return not (
        request.method == "CONNECT"
        or "Transfer-Encoding" in headers
        or "Content-Encoding" in headers
        or "Upgrade" in headers
    )


class TakenBody:
    """The body of one request; stands in for the payload's timer, which does nothing here."""

    __slots__ = (
        "_at",
        "_buf",
        "_exchange",
        "_filling",
        "_first",
        "_giving_back",
        "_loop",
        "_owed",
        "_payload",
        "_protocol",
        "_start",
        "_stop",
        "_tick",
        "_tick_saw",
        "_timer",
        "_transport",
        "_unread",
        "left",
    )

    def __init__(self, payload: Any, protocol: Any, transport: Any, left: int, exchange: Any):
        self._payload = payload
        self._protocol = protocol
        self._transport = transport
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()
        self.left = left
        self._owed = 0
        self._unread = b""
        self._giving_back = False
        # The fill under way: into _buf[_start:_stop]; _at is where it has come to, and _first
        # where the piece began.
        self._buf: Any = None
        self._first = self._start = self._stop = self._at = 0
        self._filling = False
        self._tick: asyncio.TimerHandle | None = None
        self._tick_saw = -1
        self._timer = payload._timer
        payload._timer = self
        transport.pause_reading()

    def take_unread(self) -> bytes:
        """What an iteration had received when it was cancelled: it comes before the rest."""
        data, self._unread = self._unread, b""
        self._count(len(data))
        return data

    def is_ready(self) -> bool:
        """Whether we still have the body, and it can be read."""
        return not (self._giving_back or self._transport.is_closing())

    # -- receiving ------------------------------------------------------------

    async def receive(self, buf: Any, start: int, stop: int, partly: bool = False) -> int:
        """Receive into ``buf[start:stop]``; returns the index one past the last byte.

        ``buf`` is what :meth:`StreamTransport._fill_begin` takes; unread bytes were taken before.
        Less than ``stop`` when the stream ends: then the payload's own ``readany`` says why.
        With ``partly`` also when nothing more has come for a while, but never ``start``.
        What a cancelled call has received stays in ``buf``; with ``partly`` it is read again.
        """
        if self._payload._waiter is not None:
            raise RuntimeError(
                "the body is read while another coroutine is already waiting for incoming data"
            )
        while not self._transport._can_fill:
            await asyncio.sleep(0)
        self._buf, self._first = buf, start
        try:
            self._begin(start, stop)
            while self._filling:
                if partly:
                    self._arm()
                await self._wait(partly)
                if self._at == self._stop < stop:  # the first byte after a silence
                    self._begin(self._at, stop)
            return self._at
        finally:
            self._buf = None

    def _begin(self, start: int, stop: int) -> None:
        self._start, self._stop = start, stop
        end = self._transport._fill_begin(self._buf, start, stop, self._done)
        self._filling = True
        if end == stop:
            self._done(end)

    async def _wait(self, partly: bool) -> None:
        payload = self._payload
        waiter = payload._waiter = self._loop.create_future()
        try:
            await waiter
        except BaseException:
            if self._filling:
                self._done(self._transport._fill_cancel())
            if partly and self._at > self._first:
                self._read_later(bytes(self._buf[self._first : self._at]))
            raise
        finally:
            if payload._waiter is waiter:
                payload._waiter = None

    def _done(self, end: int) -> None:
        """The transport fills no more; nothing of the stream has gone anywhere else since."""
        self._filling = False
        self._at = end
        self.left -= end - self._start
        self._count(end - self._start)
        if self.left:
            self._transport.pause_reading()
        else:
            self._finish()
        self._wake()

    def _count(self, nbytes: int) -> None:
        self._owed += nbytes
        self._payload.total_bytes += nbytes
        self._payload._cursor += nbytes

    def _wake(self) -> None:
        waiter, self._payload._waiter = self._payload._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- what a cancelled iteration had received ------------------------------

    def _read_later(self, data: bytes) -> None:
        payload = self._payload
        if payload.is_eof():  # we are done with it, and it is in nobody's way there
            payload._buffer.append(data)
            payload._size += len(data)
            payload._cursor -= len(data)
        else:
            self._unread = data
            self._count(-len(data))

    # -- pieces of a body that comes slowly -----------------------------------

    def _arm(self) -> None:
        if self._tick is None:
            self._tick_saw = self.left
            self._tick = self._loop.call_later(_PATIENCE, self._on_tick)

    def _on_tick(self) -> None:
        """Hand out what there is, or wait for the next byte without a clock.

        One timer looks after many pieces: it acts when it finds the one that it found before.
        """
        self._tick = None
        if not self._filling:
            return
        if self._tick_saw != self.left:
            self._arm()
            return
        end = self._transport._fill_cancel()
        if end > self._first:
            self._done(end)
        else:
            self._begin(self._start, self._start + 1)

    # -- the end --------------------------------------------------------------

    def _finish(self) -> None:
        self._let_go()
        self._exchange(self._protocol)
        self._payload.feed_eof()
        self._transport.resume_reading()

    def _let_go(self) -> None:
        self._payload._timer = self._timer
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    # -- giving back ----------------------------------------------------------

    def _give_back(self) -> None:
        if self._transport.is_closing():
            self._owed = 0
        for _ in range(_ZEROS_A_TURN):
            count = min(self._owed, len(_ZEROS))
            if count and not self._feed_zeros(count):
                count = self._owed
            self._owed -= count
        if self._owed:
            self._loop.call_soon(self._give_back)
            return
        self._let_go()
        if self._unread:
            self._protocol.data_received(self._unread)
        self._transport.resume_reading()

    def _feed_zeros(self, count: int) -> bool:
        """Let the parser catch up; False when aiohttp no longer parses: it is closing."""
        payload = self._payload
        total = payload.total_bytes
        self._protocol.data_received(_ZEROS if count == len(_ZEROS) else _ZEROS[:count])
        taken = bool(payload._buffer)
        payload._buffer.clear()
        payload._size = payload._buffer_offset = 0
        payload.total_bytes = payload._cursor = total
        return taken

    # -- what the payload wants of its timer ----------------------------------

    def __enter__(self) -> Self:
        if not self._giving_back:
            self._giving_back = True
            self._give_back()
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def assert_timeout(self) -> None:
        """Never too late: there is no time limit."""
