"""One stream connection: its state, its descriptor, its two halves."""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
import sys
import warnings
from asyncio import constants, transports
from asyncio.log import logger
from asyncio.trsock import TransportSocket
from collections import deque
from collections.abc import Callable
from typing import Any

from .engine import GIL_HELD_MAX, Engine, lib
from .linger import Lingering, milliseconds
from .pages import large_buffers
from .receive import ReceiveHalf
from .send import SendHalf
from .states import ConnState, check_step
from .stats import ConnStats

__all__ = ["StreamTransport", "check_protocol"]

_CONN_FLAGS = {
    int(socket.AF_INET): lib.ZC_CONN_NODELAY,
    int(socket.AF_INET6): lib.ZC_CONN_NODELAY,
    int(socket.AF_UNIX): lib.ZC_CONN_PROBE_AFTER_SHORT,
}
_AF_INET = int(socket.AF_INET)
# Looking a member up in its class takes four times as long as the comparison.
_CLOSING = ConnState.CLOSING


class _SharedSocket(TransportSocket):
    """The socket as a program may see it: what it does itself comes after what it wrote."""

    __slots__ = ("_engine",)

    def __init__(self, sock: socket.socket, engine: Engine) -> None:
        super().__init__(sock)
        self._engine = engine

    def fileno(self) -> int:
        self._engine.uncork()
        return super().fileno()

    def dup(self) -> socket.socket:
        self._engine.uncork()
        return super().dup()

    def shutdown(self, how: int) -> None:
        self._engine.uncork()
        super().shutdown(how)


def check_protocol(protocol: object) -> None:
    """A factory that forgets its ``return`` is told so before anything waits for its protocol."""
    if protocol is None:
        raise TypeError("a protocol is required, but the protocol factory returned None")


def _addresses(transport: StreamTransport) -> tuple[Any, Any]:
    """Own and peer's address; one that can't be had (reset already) is None, as in asyncio."""
    if transport._kind[0] == _AF_INET:
        fd = transport._sock_fd
        return lib.zc_inet_sockname(fd), lib.zc_inet_peername(fd)
    sock = transport._need_sock()
    names: list[Any] = []
    for get in (sock.getsockname, sock.getpeername):
        try:
            names.append(get())
        except OSError:
            names.append(None)
    return names[0], names[1]


def _as_tuple(name: Any) -> Any:
    """An address as the socket module gives it, from what :func:`_addresses` found."""
    if not isinstance(name, int):
        return name
    if name < 0:
        return None
    return socket.inet_ntoa((name >> 16).to_bytes(4, "big")), name & 0xFFFF


class StreamTransport(ReceiveHalf, SendHalf, transports._FlowControlMixin):
    """A connected TCP or unix stream socket, as an :class:`asyncio.Transport`.

    (The private mix-in holds the water marks, and asyncio's own sendfile
    fallback insists on it.)

    Owns the socket (an object or, from a listener, a descriptor of that ``kind``: family,
    type, protocol) from its creation on, and closes it once ``connection_lost`` has run.
    """

    __slots__ = (
        "__weakref__",
        "_aborted",
        "_buffered",
        "_c",
        "_conn_lost",
        "_context",
        "_direct",
        "_empty_waiter",
        "_engine",
        "_eof",
        "_file_writer",
        "_fill",
        "_fill_keep",
        "_fill_start",
        "_head",
        "_hindered",
        "_kind",
        "_last_counters",
        "_lingering",
        "_maps",
        "_paused",
        "_peername",
        "_plain_max",
        "_protocol",
        "_queue",
        "_queued",
        "_read_eof",
        "_read_lowat",
        "_server",
        "_slot",
        "_sock",
        "_sock_fd",
        "_sockname",
        "_stash",
        "_state",
        "_zerocopy",
        "_zerocopy_min",
    )

    # Where asyncio's start_tls and sendfile look.
    _start_tls_compatible = True
    _sendfile_compatible = constants._SendfileMode.TRY_NATIVE

    def __init__(
        self,
        loop: Any,
        engine: Engine,
        sock: socket.socket | int,
        kind: tuple[int, int, int],
        protocol: asyncio.BaseProtocol,
        context: contextvars.Context,
        server: Any = None,
    ) -> None:
        # What the mix-in's constructor does, without its calls: this runs once a connection.
        self._extra: dict[str, Any] | None = None
        self._loop = loop
        self._protocol_paused = False
        check_protocol(protocol)
        self._high_water = 64 * 1024
        self._low_water = 16 * 1024
        self._engine = engine
        self._c = engine.c
        self._kind = kind
        if isinstance(sock, int):
            self._sock: socket.socket | None = None
            self._sock_fd = sock
        else:
            self._sock = sock
            self._sock_fd = sock.fileno()
        self._slot = -1
        self._context = context
        self._state = ConnState.STARTING
        self._conn_lost = 0
        self._protocol: Any = protocol
        # receiving
        self._paused = False
        self._read_eof = False
        self._stash: list[bytes] | None = None
        self._fill: Callable[[int], object] | None = None
        self._fill_keep: Any = None
        self._fill_start = 0
        self._maps: bool | None = None  # not asked yet
        self._read_lowat = 1
        # sending
        self._queue: deque[Any] | None = None  # made when first needed: it takes 600 bytes
        self._queued = self._head = 0
        self._direct = False
        self._eof = False
        self._hindered = False
        self._empty_waiter: asyncio.Future[None] | None = None
        self._file_writer: Callable[[], None] | None = None
        self._aborted = False
        self._zerocopy = None
        self._zerocopy_min = minimum = loop._zerocopy_min
        self._plain_max = GIL_HELD_MAX if minimum > GIL_HELD_MAX else minimum - 1
        self._last_counters = b""
        self._lingering: Lingering | None = None
        self._sockname, self._peername = _addresses(self)
        loop._transports_by_fd[self._sock_fd] = self
        self._server = server
        if server is not None:
            server._attach(*self._server_args())

    def __repr__(self) -> str:
        info = [type(self).__name__, self._state.name.lower(), f"fd={self._sock_fd}"]
        if self._state <= ConnState.CLOSING:
            info.append("read=paused" if self._paused else "read=polling")
            info.append(f"write=<bufsize={self._queued}>")
        return f"<{' '.join(info)}>"

    # -- life -----------------------------------------------------------------

    def _start(self, waiter: asyncio.Future[None] | None = None) -> None:
        """Tell the protocol, then start reading; runs in the connection's context."""
        try:
            self._slot = self._engine.add(
                self._sock_fd,
                self,
                lib.ZC_MODE_DATA,
                _CONN_FLAGS.get(self._kind[0], 0),
            )
        except OSError as exc:
            self._lose(exc)
            self._drop_queue(exc)
            if waiter is not None and not waiter.done():
                waiter.set_exception(exc)
            return
        if self._read_lowat > 1:
            lib.zc_set_idle_lowat(self._c, self._slot, self._read_lowat)
        if large_buffers():
            self._expect_page_buffers()
        try:
            if self._state is ConnState.STARTING:
                self._advance(ConnState.OPEN)
            self._direct = self._state is ConnState.OPEN and not (self._eof or self._queued)
            self._protocol.connection_made(self)
        finally:
            if self._state is ConnState.OPEN:
                self._route()
                if self._queued:
                    self._flush()
                elif self._eof:
                    self._shutdown_write()
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def _advance(self, state: ConnState) -> None:
        check_step(self._state, state)
        self._state = state

    def close(self) -> None:
        """Read nothing more, send what is queued, then close."""
        if self._slot >= 0:
            self._engine.uncork()  # what the kernel doesn't take of it is queued
        if self._state >= ConnState.CLOSING:
            return
        self._advance(ConnState.CLOSING)
        self._stop_receiving()
        if self._zerocopy is not None and self._queued and self._reap():
            self._bound_linger()
        # Releasing buffers may have run anybody's code, and ended the connection.
        if self._state is _CLOSING and not self._queued and self._empty_waiter is None:
            self._lose(None)

    def _bound_linger(self) -> None:
        """A peer that takes nothing after ``close()`` must not keep what is in flight for ever."""
        lib.zc_linger(self._c, self._slot, milliseconds(self._loop._config.zerocopy_linger))

    def abort(self) -> None:
        """Close at once and drop what is queued."""
        self._force_close(None)

    def is_closing(self) -> bool:
        """Whether the connection is closing or closed."""
        return self._state >= _CLOSING

    def _stop_receiving(self) -> None:
        self._abandon_fill()  # first: a fill's end takes what waited for it, unless paused
        if self._slot >= 0:
            lib.zc_conn_pause(self._engine.c, self._slot)
            self._engine.mute(self._slot)

    def _fatal_error(self, exc: BaseException, message: str = "Fatal error on transport") -> None:
        if isinstance(exc, OSError):
            if self._loop.get_debug():
                logger.debug("%r: %s", self, message, exc_info=exc)
        else:
            self._loop.call_exception_handler(
                {
                    "message": message,
                    "exception": exc,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
        self._force_close(exc)

    def _force_close(self, exc: BaseException | None) -> None:
        if self._state >= ConnState.LOST:
            return
        self._aborted = True
        self._stop_receiving()
        self._lose(exc)
        self._drop_queue(exc)  # last: releasing buffers may run anybody's code

    def _lose(self, exc: BaseException | None) -> None:
        """Have ``connection_lost`` called: from here on writes are dropped."""
        self._advance(ConnState.LOST)
        self._conn_lost += 1
        self._direct = False
        if self._file_writer is not None:
            self._file_writer()
        if self._empty_waiter is not None and not self._empty_waiter.done():
            self._empty_waiter.set_exception(ConnectionError("Connection is closed by peer"))
        self._loop.call_soon(self._call_connection_lost, exc, context=self._context)

    def _call_connection_lost(self, exc: BaseException | None) -> None:
        try:
            self._protocol.connection_lost(exc)
        finally:
            self._advance(ConnState.CLOSED)
            self._release()
            self._protocol = None

    def _release(self, collected: bool = False) -> None:
        """Give slot and descriptor back, or leave them to the sends that are in flight."""
        sock = self._sock  # of now: code that runs while buffers are released may ask for one
        if self._slot >= 0:
            if self._maps:
                self._remember_route()
            if self._zerocopy is None:
                self._last_counters = self._engine.conn_counters(self._slot)
                self._engine.remove(self._slot)
            else:
                lingering = Lingering(self._engine, self._slot, self._zerocopy)
                if not collected:  # the collector would take a new reference for a rescue
                    self._lingering = lingering
                lingering.leave(
                    abort=self._aborted,
                    linger=self._loop._config.zerocopy_linger,
                    orphan=collected or self._engine.closed,
                )
            self._slot = -1
        transports = self._loop._transports_by_fd
        if transports.get(self._sock_fd) is self:
            del transports[self._sock_fd]
        if sock is None:
            os.close(self._sock_fd)
        else:
            sock.close()
        server, self._server = self._server, None
        if server is not None:
            server._detach(*self._server_args())

    def _counters(self) -> bytes:
        if self._lingering is not None:
            return self._lingering.counters()
        return self._engine.conn_counters(self._slot) if self._slot >= 0 else self._last_counters

    def _server_args(self) -> tuple[Any, ...]:
        # asyncio.Server counts its connections up to 3.12 and knows them from 3.13 on.
        return (self,) if sys.version_info >= (3, 13) else ()

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if getattr(self, "_state", ConnState.CLOSED) is not ConnState.CLOSED:
            _warn(f"unclosed transport {self!r}", ResourceWarning, source=self)
            if self._fill_keep is not None:
                self._end_native_fill()
            self._release(collected=True)

    def _route_key(self) -> Any:
        """The peer's address without its port: what a route's memory goes by."""
        peer = _as_tuple(self._peername)  # the field's form depends on who has asked already
        return peer and peer[0]

    def _need_sock(self) -> socket.socket:
        """The descriptor as a socket object, which most connections never need."""
        if self._sock is None:
            if self._state is ConnState.CLOSED:
                self._sock = socket.socket(*self._kind)
                self._sock.close()
            else:
                self._sock = socket.socket(*self._kind, fileno=self._sock_fd)
        return self._sock

    # -- protocol and information ---------------------------------------------

    def get_protocol(self) -> Any:
        """The protocol of now."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Give what comes from here on to another protocol, of either kind."""
        self._abandon_fill()
        self._protocol = protocol
        self._route()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """``socket``, ``sockname``, ``peername``, or ``zcloop``: a :class:`ConnStats` of now."""
        if name == "zcloop":
            return ConnStats.from_native(self._counters())
        if name == "peername":
            self._peername = _as_tuple(self._peername)
            return self._peername
        if name == "sockname":
            self._sockname = _as_tuple(self._sockname)
            return self._sockname
        if name == "socket":
            return _SharedSocket(self._need_sock(), self._engine)
        return default if self._extra is None else self._extra.get(name, default)
