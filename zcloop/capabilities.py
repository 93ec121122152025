"""What this kernel can do, as tried at run time by native/probe.c.

Never a version number: distributions backport and sandboxes filter, so each
feature was used once on sockets of our own.  The loop asks here before it
takes a path that needs one.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from .engine import ffi, lib


@dataclass(frozen=True, slots=True)
class Capability:
    """One kernel feature.

    name: as in `capabilities()[name]`.
    available: it was tried and worked.
    detail: one line for people; why not, where it does not work.
    errno: the error that says why not, None when available.
    value: the figure that goes with some names (see `_FEATURES`), else None.
    """

    name: str
    available: bool
    detail: str
    errno: int | None
    value: int | None = None

    def __bool__(self) -> bool:
        return self.available


@dataclass(frozen=True, slots=True)
class _Feature:
    purpose: str
    figure: str | None = None  # how to read the figure: a format for {0}


# Every name that native/probe.c reports, and what it is for.
_FEATURES: Final[Mapping[str, _Feature]] = MappingProxyType(
    {
        "page_size": _Feature("unit of mapping", "{0} bytes"),
        "optmem_max": _Feature("bound on zero-copy sends in flight, per socket", "{0} bytes"),
        "rlimit_memlock": _Feature("bound on memory pinned by zero-copy sends", "{0} bytes"),
        "eventfd": _Feature("doorbell between processes"),
        "memfd_seals": _Feature("shared memory that neither side can resize"),
        "nested_epoll": _Feature("the engine's epoll watched by the host loop"),
        "epoll_exclusive": _Feature("one wake-up among processes that share a listener"),
        "unix_peercred": _Feature("abstract unix sockets that say whose peer it is"),
        "tcp_user_timeout": _Feature("bounded wait for a peer that stopped acknowledging"),
        "tcp_disconnect": _Feature("abort that makes the kernel let go of memory at once"),
        "tcp_inq": _Feature("bytes left in the queue, told by recvmsg"),
        "so_rcvlowat": _Feature("wake only when enough has arrived", "at most {0} bytes"),
        "sendfile": _Feature("file to socket inside the kernel"),
        "splice": _Feature("pipe to socket inside the kernel"),
        "so_zerocopy": _Feature("socket option that allows zero-copy sends"),
        "msg_zerocopy": _Feature("send without a copy, with completion"),
        "tcp_zerocopy_receive": _Feature("receive by mapping pages", "struct of {0} bytes"),
        "tcp_zerocopy_copybuf": _Feature("small bytes copied by the mapping call itself"),
        "tcp_zerocopy_map": _Feature("a page received by mapping, on loopback", "{0} bytes mapped"),
    }
)


class Capabilities(Mapping[str, Capability]):
    """Immutable mapping from a feature's name to its `Capability`, in probing order."""

    __slots__ = ("_by_name",)

    def __init__(self, found: Iterator[Capability]) -> None:
        self._by_name: Final = MappingProxyType({one.name: one for one in found})

    def __getitem__(self, name: str) -> Capability:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._by_name.values())!r})"

    def __str__(self) -> str:
        width = max(map(len, self))
        return "\n".join(
            f"{one.name:<{width}}  {'yes' if one.available else 'no ':<3}  {one.detail}"
            for one in self.values()
        )


def _figure(name: str, value: int) -> tuple[int | None, str]:
    """The figure of an available feature and how it reads in a detail."""
    figure = _FEATURES[name].figure
    if name == "rlimit_memlock" and value < 0:
        return None, ": no limit"
    if name == "msg_zerocopy":
        # Loopback always copies; no answer about a route through a NIC.
        return None, " (loopback: the kernel copied after all)" if value else ""
    return (None, "") if figure is None else (value, ": " + figure.format(value))


def _capability(name: str, error: int, value: int) -> Capability:
    """A `Capability` from one of the probe's records (error 0: it works)."""
    purpose = _FEATURES[name].purpose
    if error:
        reason = f"{errno.errorcode.get(error, error)}, {os.strerror(error)}"
        return Capability(name, False, f"{purpose}: {reason}", error)
    figure, reading = _figure(name, value)
    return Capability(name, True, purpose + reading, None, figure)


@functools.cache
def capabilities() -> Capabilities:
    """What this kernel can do, probed once per process (about a millisecond).

    The probing opens sockets on loopback and closes them again.  A feature that
    cannot be tried, for want of descriptors or of a loopback device, counts as
    unavailable and its errno says so.
    """
    records = ffi.new("zc_capability[]", lib.ZC_CAPABILITY_COUNT)
    count = lib.zc_probe_nogil(records, lib.ZC_CAPABILITY_COUNT)
    if count != lib.ZC_CAPABILITY_COUNT:
        raise OSError(-count, os.strerror(-count))
    return Capabilities(
        _capability(ffi.string(record.name).decode("ascii"), record.err, record.value)
        for record in records
    )
