"""Watching descriptors: uvloop's add_reader and its kin, with asyncio's answers.

uvloop neither says whether there was a reader to remove nor knows which
descriptors our transports own; asyncio's borrowed methods need a handle for
each callback.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvloop

if TYPE_CHECKING:
    from .transport import StreamTransport

__all__ = ["WatchMethods"]


class WatchMethods(uvloop.Loop):
    """Mixed into the loop, which makes the fields."""

    _transports_by_fd: dict[int, StreamTransport]
    _watched: tuple[dict[int, asyncio.Handle], dict[int, asyncio.Handle]]
    _stopping: bool

    def _ensure_fd_no_transport(self, fd: Any) -> None:
        fileno = _fileno(fd)
        transport = self._transports_by_fd.get(fileno)
        if transport is not None and not transport.is_closing():
            raise RuntimeError(f"File descriptor {fd!r} is used by transport {transport!r}")

    def _watch(
        self, which: int, fileobj: Any, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self)

        def ready() -> None:
            # uvloop polls once more after stop(); the descriptor is still ready at the next run.
            if not self._stopping:
                handle._run()

        add = super().add_writer if which else super().add_reader
        add(fileobj, ready)
        handles = self._watched[which]
        fileno = _fileno(fileobj)
        old = handles.get(fileno)
        if old is not None:
            old.cancel()
        handles[fileno] = handle
        return handle

    def _unwatch(self, which: int, fileobj: Any) -> bool:
        handle = self._watched[which].pop(_fileno(fileobj), None)
        remove = super().remove_writer if which else super().remove_reader
        remove(fileobj)
        if handle is None:
            return False
        handle.cancel()
        return True

    def _add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._watch(0, fd, callback, args)

    def _add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._watch(1, fd, callback, args)

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        """Call back when ``fd`` is readable; refused for a descriptor that a transport owns."""
        self._ensure_fd_no_transport(fd)
        self._watch(0, fd, callback, args)

    def add_writer(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        """Call back when ``fd`` is writable; refused for a descriptor that a transport owns."""
        self._ensure_fd_no_transport(fd)
        self._watch(1, fd, callback, args)

    def remove_reader(self, fd: Any) -> bool:  # type: ignore[override]
        """Undo :meth:`add_reader`; whether there was one."""
        self._ensure_fd_no_transport(fd)
        return self._unwatch(0, fd)

    def remove_writer(self, fd: Any) -> bool:  # type: ignore[override]
        """Undo :meth:`add_writer`; whether there was one."""
        self._ensure_fd_no_transport(fd)
        return self._unwatch(1, fd)

    def sock_recv(self, sock: socket.socket, nbytes: int) -> Any:
        """Receive from a socket; refused for one that a transport owns."""
        self._ensure_fd_no_transport(sock)
        return super().sock_recv(sock, nbytes)

    def sock_recv_into(self, sock: socket.socket, buf: Any) -> Any:
        """Receive from a socket into a buffer; refused for one that a transport owns."""
        self._ensure_fd_no_transport(sock)
        return super().sock_recv_into(sock, buf)

    def sock_sendall(self, sock: socket.socket, data: Any) -> Any:
        """Send to a socket; refused for one that a transport owns."""
        self._ensure_fd_no_transport(sock)
        return super().sock_sendall(sock, data)

    def _forget_watched(self) -> None:
        """The loop closes: nothing is watched any more."""
        for handles in self._watched:
            for handle in handles.values():
                handle.cancel()
            handles.clear()


def _fileno(fileobj: Any) -> int:
    if isinstance(fileobj, int):
        return fileobj
    try:
        return int(fileobj.fileno())
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"Invalid file object: {fileobj!r}") from None
