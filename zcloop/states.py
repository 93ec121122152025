"""The states of a connection, as a table that knows neither side nor kernel."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ConnState", "check_step"]


class ConnState(IntEnum):
    """Where a connection is in its life; it only ever moves forward.

    STARTING
        The descriptor is ours, ``connection_made`` hasn't run.
    OPEN
        Both halves belong to the protocol.
    CLOSING
        ``close()`` was called: nothing more is read, what is queued is sent.
    LOST
        ``connection_lost`` is scheduled; writes are dropped and counted.
    CLOSED
        ``connection_lost`` ran and the descriptor is closed.
    """

    STARTING = 0
    OPEN = 1
    CLOSING = 2
    LOST = 3
    CLOSED = 4


_STEPS = {
    ConnState.STARTING: {ConnState.OPEN, ConnState.CLOSING, ConnState.LOST},
    ConnState.OPEN: {ConnState.CLOSING, ConnState.LOST},
    ConnState.CLOSING: {ConnState.LOST},
    ConnState.LOST: {ConnState.CLOSED},
    ConnState.CLOSED: set[ConnState](),
}


def check_step(old: ConnState, new: ConnState) -> None:
    """Raises :exc:`AssertionError` unless the table allows the step."""
    if new not in _STEPS[old]:
        raise AssertionError(f"connection can't go from {old.name} to {new.name}")
