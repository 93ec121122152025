"""asyncio's own methods, taken as they are from the Python that runs.

What a loop does around a connection - resolving, binding, happy eyeballs,
argument checks, error messages, ``Server`` - differs between Python versions
and isn't what zcloop is for.  asyncio implements it in plain Python over a few
hooks, so :class:`zcloop.EventLoop` uses those functions and implements the
hooks: whatever Python runs, these behave as its asyncio does.

The hooks are ``_start_serving``, ``_stop_serving``, ``_make_socket_transport``,
``_make_ssl_transport``, ``_sendfile_native``, ``_add_reader``/``_add_writer``,
``_ensure_fd_no_transport`` and ``_debug``.  tests/test_stdlib.py finds every
attribute that a borrowed function reads from ``self`` and fails when a Python
version asks for one that the loop doesn't have.
"""

from __future__ import annotations

from asyncio.base_events import BaseEventLoop
from asyncio.selector_events import BaseSelectorEventLoop
from asyncio.unix_events import _UnixSelectorEventLoop
from typing import Any

__all__ = ["BORROWED", "StdlibMethods"]

BORROWED: dict[type, tuple[str, ...]] = {
    BaseEventLoop: (
        "_check_sendfile_params",
        "_connect_sock",
        "_create_connection_transport",
        "_create_server_getaddrinfo",
        "_ensure_resolved",
        "_sendfile_fallback",
        "_sock_sendfile_fallback",
        "connect_accepted_socket",
        "create_connection",
        "create_server",
        "sendfile",
        "sock_sendfile",
    ),
    BaseSelectorEventLoop: (
        "_sock_connect",
        "_sock_connect_cb",
        "_sock_read_done",
        "_sock_recvfrom",
        "_sock_recvfrom_into",
        "_sock_sendto",
        "_sock_write_done",
        "sock_connect",
        "sock_recvfrom",
        "sock_recvfrom_into",
        "sock_sendto",
    ),
    _UnixSelectorEventLoop: (
        "_sock_add_cancellation_callback",
        "_sock_sendfile_native",
        "_sock_sendfile_native_impl",
        "_sock_sendfile_update_filepos",
        "create_unix_connection",
        "create_unix_server",
    ),
}


class StdlibMethods:
    """The borrowed methods, as a base class that comes before uvloop's loop."""

    __slots__ = ()


def _borrow() -> None:
    for owner, names in BORROWED.items():
        for name in names:
            method: Any = owner.__dict__[name]
            setattr(StdlibMethods, name, method)


_borrow()
