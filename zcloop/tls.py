"""TLS over a zcloop transport: asyncio's SSLProtocol, with one fault of it mended."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from typing import Any

__all__ = ["TlsProtocol", "start_tls"]


class TlsProtocol(sslproto.SSLProtocol):
    """asyncio's TLS protocol, whose application may also give a ``bytearray`` as its buffer.

    asyncio decrypts into slices of what ``get_buffer`` returned.  A slice of a
    ``bytearray`` is a copy, so there all but a wake-up's first record is lost;
    a slice of a view isn't.
    """

    def _set_app_protocol(self, app_protocol: Any) -> None:
        super()._set_app_protocol(app_protocol)
        if self._app_protocol_is_buffer:
            get_buffer = self._app_protocol_get_buffer
            self._app_protocol_get_buffer = lambda size: memoryview(get_buffer(size)).cast("B")


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
