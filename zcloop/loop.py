"""The event loop: uvloop's, with zcloop's transports under its streams.

uvloop keeps callbacks, timers, DNS, pipes, subprocesses, UDP, signals and
executors.  asyncio's own methods (see stdlib.py) do what surrounds a
connection.  This file has the hooks between them and the engine.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
import ssl
import warnings
from asyncio.log import logger
from collections.abc import Callable
from typing import Any, Self

import uvloop

from .config import NOT_BUILT, Config
from .engine import Engine, lib
from .fast_streams import fast_factory, upgrade_process
from .mapping import state as mapping_state
from .pages import page_stats
from .sendfile import send_file
from .server import Listener
from .stats import ConnStats, LoopStats
from .stdlib import StdlibMethods
from .tls import TlsProtocol, start_tls
from .transport import StreamTransport, check_protocol
from .watch import WatchMethods
from .zerocopy import threshold

__all__ = ["EventLoop"]

_Protocol = asyncio.BaseProtocol


class EventLoop(StdlibMethods, WatchMethods, uvloop.Loop):  # type: ignore[misc]
    """A :class:`uvloop.Loop` whose TCP and unix streams are zcloop's.

    ``config`` defaults to :meth:`Config.from_env`, which raises
    :exc:`ValueError` for a ``ZCLOOP_*`` variable that it can't make sense of.
    """

    _config: Config

    def __new__(cls, config: Config | None = None) -> Self:
        # Before uvloop opens its descriptors, which nobody would close.
        if config is None:
            config = Config.from_env()
        elif not isinstance(config, Config):
            raise TypeError(f"config must be a zcloop.Config or None, not {config!r}")
        _apply(config)
        self = super().__new__(cls)
        self._config = config
        return self

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()
        self._engine: Engine | None = None
        self._zerocopy_min = threshold(self._config)
        self._listeners: dict[int, Listener] = {}
        self._transports_by_fd: dict[int, StreamTransport] = {}
        self._watched: tuple[dict[int, asyncio.Handle], dict[int, asyncio.Handle]] = ({}, {})
        self._unix_server_sockets: dict[socket.socket, int] = {}
        self._stopping = False
        self._task_factory: Any = None

    @property
    def config(self) -> Config:
        """What this loop was told."""
        return self._config

    def __repr__(self) -> str:
        return (
            f"<zcloop.EventLoop running={self.is_running()} "
            f"closed={self.is_closed()} debug={self.get_debug()}>"
        )

    @property
    def _debug(self) -> bool:  # asyncio's methods read it
        return bool(self.get_debug())

    def _need_engine(self) -> Engine:
        engine = self._engine
        if engine is None:
            if self.is_closed():
                raise RuntimeError("Event loop is closed")
            engine = self._engine = Engine(
                super(WatchMethods, self).add_reader,
                super(WatchMethods, self).remove_reader,
                self.call_soon,
                self._config.busy_poll,
                self._config.receive,
                self._config.arena_bytes,
            )
        return engine

    def close(self) -> None:
        """Close the loop; connections that are still open warn when they are collected."""
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if self.is_closed():
            return
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self._forget_watched()
        if self._engine is not None:
            self._engine.close()
        self._transports_by_fd.clear()  # a closed loop keeps no connection from being collected
        super().close()

    # -- hooks: making transports ---------------------------------------------

    def _make_socket_transport(
        self,
        sock: socket.socket,
        protocol: _Protocol,
        waiter: asyncio.Future[None] | None = None,
        *,
        extra: dict[str, Any] | None = None,
        server: Any = None,
    ) -> StreamTransport:
        context = contextvars.copy_context()
        kind = (int(sock.family), int(sock.type), sock.proto)
        transport = StreamTransport(
            self, self._need_engine(), sock, kind, protocol, context, server
        )
        if extra:
            transport._extra = dict(extra)
        self.call_soon(transport._start, waiter, context=context)
        return transport

    async def _create_connection_transport(
        self,
        sock: socket.socket,
        protocol_factory: Callable[[], _Protocol],
        *args: Any,
        **kwargs: Any,
    ) -> tuple[asyncio.Transport, _Protocol]:
        make = self._fast_factory(protocol_factory)

        def make_or_close() -> _Protocol:
            try:
                protocol = make()
                check_protocol(protocol)
                return protocol
            except BaseException:
                sock.close()
                raise

        connect: Any = StdlibMethods._create_connection_transport  # type: ignore[attr-defined]
        connected: tuple[asyncio.Transport, _Protocol]
        connected = await connect(self, sock, make_or_close, *args, **kwargs)
        return connected

    def _fast_factory(self, factory: Callable[[], _Protocol]) -> Callable[[], _Protocol]:
        return fast_factory(factory) if self._config.fast_streams else factory

    def _make_ssl_transport(
        self,
        rawsock: socket.socket,
        protocol: _Protocol,
        sslcontext: Any,
        waiter: asyncio.Future[None] | None = None,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        extra: dict[str, Any] | None = None,
        server: Any = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> asyncio.Transport:
        check_protocol(protocol)
        tls = TlsProtocol(
            self,
            protocol,
            sslcontext,
            waiter,
            server_side,
            server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )
        transport = self._make_socket_transport(rawsock, tls, extra=extra, server=server)
        _remember_addresses(tls, transport)
        app_transport: asyncio.Transport = tls._app_transport
        return app_transport

    async def start_tls(
        self,
        transport: Any,
        protocol: _Protocol,
        sslcontext: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> asyncio.Transport:
        """Upgrade a connection to TLS, as asyncio's; returns the transport to use from then on."""
        return await start_tls(
            self,
            transport,
            protocol,
            sslcontext,
            server_side=server_side,
            server_hostname=server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )

    # -- hooks: serving -------------------------------------------------------

    def _start_serving(
        self,
        protocol_factory: Callable[[], _Protocol],
        sock: socket.socket,
        sslcontext: Any = None,
        server: Any = None,
        backlog: int = 100,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> None:
        engine = self._need_engine()
        protocol_factory = self._fast_factory(protocol_factory)
        sock.setblocking(False)

        def make_plain(fd: int, kind: tuple[int, int, int]) -> Callable[[], object]:
            protocol = protocol_factory()
            context = listener._context
            return StreamTransport(self, engine, fd, kind, protocol, context, server)._start

        def make_tls(fd: int, kind: tuple[int, int, int]) -> Callable[[], object]:
            tls = TlsProtocol(
                self,
                protocol_factory(),
                sslcontext,
                None,
                True,
                ssl_handshake_timeout=ssl_handshake_timeout,
                ssl_shutdown_timeout=ssl_shutdown_timeout,
            )
            context = listener._context
            transport = StreamTransport(self, engine, fd, kind, tls, context, server)
            _remember_addresses(tls, transport)
            return transport._start

        listener = Listener(self, engine, sock, make_tls if sslcontext else make_plain)
        self._listeners[sock.fileno()] = listener

    def _stop_serving(self, sock: socket.socket) -> None:
        listener = self._listeners.pop(sock.fileno(), None)
        if listener is not None:
            listener.close()
        inode = self._unix_server_sockets.pop(sock, None)
        path = sock.getsockname() if inode is not None else None
        sock.close()
        if path is not None:
            _remove_socket_file(path, inode)

    # -- hooks: files ---------------------------------------------------------

    async def _sendfile_native(self, transp: Any, file: Any, offset: int, count: int | None) -> int:
        if not isinstance(transp, StreamTransport):
            raise asyncio.SendfileNotAvailableError("sendfile syscall is not supported")
        check: Any = self._check_sendfile_params  # type: ignore[attr-defined]
        check(transp.get_extra_info("socket"), file, offset, count)
        return await send_file(transp, file, offset, count)

    # -- running --------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """As asyncio's: refused, before anything is wrapped in a task, while a loop runs."""
        if self.is_running():
            raise RuntimeError("This event loop is already running")
        return super().run_until_complete(future)

    def run_forever(self) -> None:
        """Run until :meth:`stop` is called."""
        self._stopping = False
        super().run_forever()

    def stop(self) -> None:
        """Stop running once the callbacks that are ready have run."""
        self._stopping = True
        super().stop()

    def set_task_factory(self, factory: Any) -> None:
        """As asyncio's: arguments that were not given are not passed to the factory."""
        if factory is None or not callable(factory):
            super().set_task_factory(factory)  # clears it, or raises the TypeError
        else:
            super().set_task_factory(
                lambda loop, coro, **given: factory(
                    loop, coro, **{name: v for name, v in given.items() if v is not None}
                )
            )
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        """The factory of :meth:`set_task_factory`, or None."""
        return self._task_factory

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """As asyncio's: the handler runs in the context of what raised, where that has one."""
        thing = context.get("task") or context.get("future") or context.get("handle")
        get_context = getattr(thing, "get_context", None)
        if get_context is None:
            super().call_exception_handler(context)
        else:
            get_context().run(super().call_exception_handler, context)

    async def subprocess_shell(self, protocol_factory: Any, cmd: Any, **kwargs: Any) -> Any:
        """As asyncio's: :exc:`ValueError` for a command that isn't a string."""
        if not isinstance(cmd, (bytes, str)):
            raise ValueError("cmd must be a string")
        return self._fast_pipes(await super().subprocess_shell(protocol_factory, cmd, **kwargs))

    async def subprocess_exec(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        """As uvloop's; the readers of asyncio's own process streams become fast ones."""
        return self._fast_pipes(await super().subprocess_exec(protocol_factory, *args, **kwargs))

    def _fast_pipes(self, made: tuple[Any, Any]) -> tuple[Any, Any]:
        if self._config.fast_streams:
            upgrade_process(made[1])
        return made

    # -- seeing what happens --------------------------------------------------

    def zcloop_stats(self) -> LoopStats:
        """The counters of this loop's engine and connections, as of now."""
        engine = self._engine
        pages = page_stats()
        arena: dict[str, Any] = {
            "arena_bytes": pages.arena_bytes,
            "arena_used_bytes": pages.leased_bytes,
            "arena_full": pages.full,
        }
        if engine is None:
            return LoopStats(**arena)
        totals = ConnStats.from_native(engine.totals())
        mapping = mapping_state(engine)
        return LoopStats(**engine.counters(), totals=totals, mapping=mapping, **arena)


_KEEP_BLOCKS_TO = 64 * 1024 * 1024
_KEEP_FREE_TO = 256 * 1024 * 1024


def _apply(config: Config) -> None:
    """What a configuration says about the process, and what of it can't be had."""
    if config.tune_malloc and lib.zc_tune_malloc(_KEEP_BLOCKS_TO, _KEEP_FREE_TO):
        warnings.warn(
            "tune_malloc=True has no effect: this process's malloc isn't glibc's",
            RuntimeWarning,
            stacklevel=4,
        )
    for name, values in NOT_BUILT.items():
        value = getattr(config, name)
        if value in values or (not values and value is not None):
            warnings.warn(
                f"{name}={value!r} has no effect in this version of zcloop",
                RuntimeWarning,
                stacklevel=4,
            )


def _remember_addresses(tls: TlsProtocol, transport: StreamTransport) -> None:
    """Let a TLS connection's addresses outlive it, as a plain connection's do."""
    for name in ("sockname", "peername"):
        tls._extra.setdefault(name, transport.get_extra_info(name))


def _remove_socket_file(path: str, inode: int | None) -> None:
    """The file of a listening unix socket, unless somebody else has taken its name."""
    try:
        if os.stat(path).st_ino == inode:
            os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as exc:
        logger.error("Unable to clean up listening UNIX socket %r: %r", path, exc)
