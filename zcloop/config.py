"""What a loop may be told: one frozen dataclass, also readable from the environment."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

__all__ = ["Config"]

RECEIVE_MODES = ("auto", "copy", "map")
SEND_MODES = ("auto", "copy", "zerocopy", "pages")
SWITCHES = ("off", "on")
NOT_BUILT: dict[str, tuple[str, ...]] = {
    "friends": ("on",),
}
"""Values (none named: any but None) that are valid but do nothing yet; a loop that is
given one warns."""

MAX_BUSY_POLL_US = 1000
MIN_LINGER_S = 0.001
MAX_LINGER_S = 86400
MIN_ARENA_BYTES = 2 * 1024 * 1024
MAX_ARENA_BYTES = 1 << 46  # all of a process's addresses, and half of that on some machines

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one :class:`zcloop.EventLoop`.

    Every field can also come from the environment, as ``ZCLOOP_`` and the
    field's name in capitals (``ZCLOOP_BUSY_POLL=off``); see :meth:`from_env`.

    receive
        How bytes reach memory that the receiver keeps (``PagesProtocol``, ``PageBuffer``,
        ``readview``): ``"auto"`` maps the kernel's pages where the stream has whole ones and
        it costs less here, ``"map"`` wherever it can, ``"copy"`` never.
    send
        ``"auto"`` sends large immutable data without a copy where the kernel can,
        ``"zerocopy"`` also where the kernel copies after all, ``"copy"`` never.
        ``"pages"`` is ``"zerocopy"`` in pieces that a receiver on the same host can map
        (loopback, or another network namespace).
    zerocopy_threshold
        Bytes from which a write may go without a copy; ``None``: 128 KiB, and 32 KiB with
        ``send="pages"``.
    zerocopy_linger
        Seconds for which a closed connection with such sends in flight waits for a peer that
        takes nothing, before it is reset.
    friends
        ``"off"`` or ``"on"``: bypass TCP between two zcloop peers of one host.
    busy_poll
        ``"auto"`` polls briefly before sleeping where recent waits were short,
        ``"off"`` never does, a number of microseconds (1 to 1000) does so
        whenever something was sent, for at most that long.
    fast_streams
        Whether plain ``asyncio.open_connection`` and ``start_server`` get the
        reader that fills its result in place.
    arena_bytes
        Upper bound of the address range for mapped pages; ``None`` chooses.
    tune_malloc
        Tells glibc, for the whole process, to keep freed memory instead of
        giving it back.

    Raises :exc:`ValueError` for a value that a field doesn't have.
    """

    receive: Literal["auto", "copy", "map"] = "auto"
    send: Literal["auto", "copy", "zerocopy", "pages"] = "auto"
    zerocopy_threshold: int | None = None
    zerocopy_linger: float = 120.0
    friends: Literal["off", "on"] = "off"
    busy_poll: Literal["auto", "off"] | int = "auto"
    fast_streams: bool = True
    arena_bytes: int | None = None
    tune_malloc: bool = False

    def __post_init__(self) -> None:
        _one_of("receive", self.receive, RECEIVE_MODES)
        _one_of("send", self.send, SEND_MODES)
        _one_of("friends", self.friends, SWITCHES)
        _bytes("zerocopy_threshold", self.zerocopy_threshold, 1)
        _seconds("zerocopy_linger", self.zerocopy_linger)
        _bytes("arena_bytes", self.arena_bytes, MIN_ARENA_BYTES, MAX_ARENA_BYTES)
        _flag("fast_streams", self.fast_streams)
        _flag("tune_malloc", self.tune_malloc)
        poll = self.busy_poll
        if isinstance(poll, bool) or not (
            poll in ("auto", "off") or (isinstance(poll, int) and 1 <= poll <= MAX_BUSY_POLL_US)
        ):
            raise ValueError(
                f"busy_poll={poll!r}: valid are 'auto', 'off' "
                f"or microseconds from 1 to {MAX_BUSY_POLL_US}"
            )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """The configuration that ``ZCLOOP_*`` variables ask for.

        An empty variable counts as unset.  Raises :exc:`ValueError`, naming the
        variable and its valid values, for a value that the field doesn't have and
        for a variable of this prefix that is no field.
        """
        env = os.environ if environ is None else environ
        known = {f"ZCLOOP_{field.name.upper()}": field.name for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for variable in sorted(env):
            if not variable.startswith("ZCLOOP_") or not env[variable]:
                continue  # an empty variable is as good as none
            if variable not in known:
                raise ValueError(f"{variable}: no such setting; valid are {', '.join(known)}")
            name = known[variable]
            try:
                values[name] = _parse(name, env[variable])
                cls(**{name: values[name]})
            except ValueError as exc:
                raise ValueError(f"environment variable {variable}: {exc}") from None
        return cls(**values)


def _one_of(name: str, value: object, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ValueError(f"{name}={value!r}: valid are {', '.join(map(repr, valid))}")


def _bytes(name: str, value: object, least: int, most: int | None = None) -> None:
    if value is None:
        return
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < least
        or (most is not None and value > most)
    ):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}={value!r}: valid are None or a number of bytes {bounds}")


def _seconds(name: str, value: object) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not MIN_LINGER_S <= value <= MAX_LINGER_S
    ):
        raise ValueError(
            f"{name}={value!r}: valid are seconds from {MIN_LINGER_S} to {MAX_LINGER_S}"
        )


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: valid are True or False")


def _parse(name: str, text: str) -> object:
    """A field's value from its text; what it can't read it hands on, for the field to refuse."""
    if name in ("fast_streams", "tune_malloc"):
        lowered = text.strip().lower()
        if lowered in _TRUE or lowered in _FALSE:
            return lowered in _TRUE
        raise ValueError(f"{name}={text!r}: valid are {', '.join(_TRUE + _FALSE)}")
    if name == "zerocopy_linger":
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{name}={text!r}: valid is a number of seconds") from None
    if name in ("zerocopy_threshold", "arena_bytes", "busy_poll"):
        try:
            return int(text)
        except ValueError:
            if name != "busy_poll":
                raise ValueError(f"{name}={text!r}: valid is a number of bytes") from None
    return text
