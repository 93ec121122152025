"""A file to a connection, in order with what was written before, without leaving the loop.

Fact: to a peer on this host nothing can spare the copy into the peer's memory,
and there sendfile(2), which hands the stack one page after the other, costs
half as much again as pread(2) into a buffer that stays in the cache and
send(2) from there (0.36 against 0.23 s CPU a GiB over loopback).  Across a
network card sendfile saves the copy.
Rule: sendfile(2) unless the peer is known to be on this host, by its unix
socket or by an address that is also our own.
Rejected: mapping the file and sending from the map (0.29 s: page faults).
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
from typing import Any

from .engine import ffi, lib, os_error
from .states import ConnState
from .transport import StreamTransport

__all__ = ["send_file"]

_SLICE = 1024 * 1024
"""Bytes a call: a peer that reads as fast as we send must not keep the loop to itself."""

_SLICES_A_TURN = 4
_COPY_BYTES = 256 * 1024
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


def _peer_is_local(transport: StreamTransport) -> bool:
    own, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    if not (isinstance(own, tuple) and isinstance(peer, tuple)):
        return True  # a unix socket
    return bool(own[0] == peer[0])


class _Sending:
    """One file under way; called again by the transport whenever it is writable or lost."""

    __slots__ = (
        "_done",
        "_fileno",
        "_held",
        "_left",
        "_local",
        "_memory",
        "_offset",
        "_sent",
        "_taken",
        "_transport",
    )

    def __init__(
        self, transport: StreamTransport, fileno: int, offset: int, count: int | None
    ) -> None:
        self._transport = transport
        self._fileno = fileno
        self._offset = offset
        self._left = count
        self._sent = 0
        self._local = _peer_is_local(transport)
        # Read from the file and not yet sent: [_taken, _held) of _memory.
        self._memory: Any = None
        self._taken = self._held = 0
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
            sent = self._copy(want) if self._local else self._send(want)
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

    def _send(self, want: int) -> int:
        """What the kernel took, 0 at the file's end, or -errno."""
        transport = self._transport
        return int(
            lib.zc_sendfile_nogil(
                transport._c, transport._slot, self._fileno, self._offset + self._sent, want
            )
        )

    def _copy(self, want: int) -> int:
        """The same by way of memory; what a short send leaves isn't read again."""
        if self._memory is None:
            self._memory = ffi.new("char[]", _COPY_BYTES)
        if self._taken == self._held:
            room = ffi.buffer(self._memory, min(want, _COPY_BYTES))
            try:
                self._held = os.preadv(self._fileno, [room], self._offset + self._sent)
            except OSError as exc:
                return -(exc.errno or errno.EIO)
            self._taken = 0
            if not self._held:
                return 0
        transport = self._transport
        start = self._memory + self._taken
        sent = lib.zc_send_nogil(transport._c, transport._slot, start, self._held - self._taken)
        if sent <= 0:
            return int(sent) or -errno.EAGAIN
        self._taken += sent
        return int(sent)

    def _fail(self, exc: OSError) -> None:
        if not self._sent and exc.errno in _LOOK_FURTHER:
            error = asyncio.SendfileNotAvailableError("os.sendfile call failed")
            error.__cause__ = exc
            self._done.set_exception(error)
            return
        self._done.set_exception(exc)
        self._transport._fatal_error(exc, "Fatal write error on socket transport")
