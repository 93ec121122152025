"""A file to a connection by sendfile(2), in order with what was written before."""

from __future__ import annotations

import asyncio
import errno
import io
import os
from typing import Any

from .engine import lib, os_error
from .states import ConnState
from .transport import StreamTransport

__all__ = ["send_file"]

_SLICE = 1024 * 1024
"""Bytes a call: a peer that reads as fast as we send must not keep the loop to itself."""

_SLICES_A_TURN = 4
_LOOK_FURTHER = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESPIPE)
"""What sendfile(2) answers for a file that it can't send from."""


async def send_file(transport: StreamTransport, file: Any, offset: int, count: int | None) -> int:
    """Send ``count`` bytes of ``file`` from ``offset``, or all to its end; returns how many.

    The file's position is set behind the last byte sent, also on errors.
    Raises :exc:`asyncio.SendfileNotAvailableError`, with nothing sent, for what
    isn't a regular file, and the connection's :exc:`OSError` when it breaks.
    """
    try:
        fileno = file.fileno()
    except (AttributeError, io.UnsupportedOperation) as exc:
        raise asyncio.SendfileNotAvailableError("not a regular file") from exc
    try:
        size = os.fstat(fileno).st_size
    except OSError as exc:
        raise asyncio.SendfileNotAvailableError("not a regular file") from exc
    was_reading = transport.is_reading()
    transport.pause_reading()
    try:
        await transport._make_empty_waiter()
        if not (count or size):
            return 0
        return await _Sending(transport, fileno, offset, count).run()
    finally:
        transport._reset_empty_waiter()
        if was_reading:
            transport.resume_reading()


class _Sending:
    """One file under way; called again by the transport whenever it is writable or lost."""

    __slots__ = ("_done", "_fileno", "_left", "_offset", "_sent", "_transport")

    def __init__(
        self, transport: StreamTransport, fileno: int, offset: int, count: int | None
    ) -> None:
        self._transport = transport
        self._fileno = fileno
        self._offset = offset
        self._left = count
        self._sent = 0
        self._done: asyncio.Future[None] = transport._loop.create_future()

    async def run(self) -> int:
        self._transport._file_writer = self._step
        try:
            self._step()
            await self._done
        finally:
            self._transport._file_writer = None
            if self._sent:
                os.lseek(self._fileno, self._offset + self._sent, os.SEEK_SET)
        return self._sent

    def _step(self) -> None:
        transport = self._transport
        if self._done.done():
            return
        if transport._state >= ConnState.LOST:
            self._done.set_exception(ConnectionError("Connection closed by peer"))
            return
        for _ in range(_SLICES_A_TURN):
            want = _SLICE if self._left is None else min(_SLICE, self._left - self._sent)
            if not want:
                self._done.set_result(None)
                return
            sent = lib.zc_sendfile_nogil(
                transport._engine.c, transport._slot, self._fileno, self._offset + self._sent, want
            )
            if sent == -errno.EAGAIN:
                return  # the transport calls again when it is writable
            if sent == 0:  # the end of the file
                self._done.set_result(None)
                return
            if sent < 0:
                self._fail(os_error(sent))
                return
            self._sent += sent
        transport._loop.call_soon(self._step)

    def _fail(self, exc: OSError) -> None:
        if not self._sent and exc.errno in _LOOK_FURTHER:
            error = asyncio.SendfileNotAvailableError("os.sendfile call failed")
            error.__cause__ = exc
            self._done.set_exception(error)
            return
        self._done.set_exception(exc)
        self._transport._fatal_error(exc, "Fatal write error on socket transport")
