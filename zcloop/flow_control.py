"""Backpressure: a protocol that has written more than the kernel takes is asked to pause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .transport import StreamTransport

    _Self = StreamTransport
else:
    _Self = Any

__all__ = ["FlowControl"]

_HIGH_WATER = 64 * 1024


class FlowControl:
    """Mixed into the transport, which holds the fields; those named here are of this file."""

    __slots__ = ()

    if TYPE_CHECKING:
        _high_water: int
        _low_water: int
        _protocol_paused: bool

    def get_write_buffer_size(self: _Self) -> int:
        """Bytes that the kernel hasn't taken yet."""
        return self._queued

    def get_write_buffer_limits(self: _Self) -> tuple[int, int]:
        """Low and high water marks, in bytes."""
        return (self._low_water, self._high_water)

    def set_write_buffer_limits(
        self: _Self, high: int | None = None, low: int | None = None
    ) -> None:
        """Set the marks in bytes; raises :exc:`ValueError` unless high >= low >= 0."""
        if high is None:
            high = _HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_water = high
        self._low_water = low
        self._maybe_pause_protocol()

    def _maybe_pause_protocol(self: _Self) -> None:
        if self._queued <= self._high_water or self._protocol_paused:
            return
        self._protocol_paused = True
        self._tell_protocol("pause_writing")

    def _maybe_resume_protocol(self: _Self) -> None:
        if self._protocol_paused and self._queued <= self._low_water:
            self._protocol_paused = False
            self._tell_protocol("resume_writing")

    def _tell_protocol(self: _Self, callback: str) -> None:
        try:
            # A copy: a write may come from within the connection's own context.
            self._context.copy().run(getattr(self._protocol, callback))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._loop.call_exception_handler(
                {
                    "message": f"protocol.{callback}() failed",
                    "exception": exc,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
