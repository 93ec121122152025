"""The doorway to the native core: one engine a loop, one batch a wake-up.

Kernel fact: libuv closes a poll handle on EPOLLERR, and EPOLLERR is how
zero-copy completions arrive.  So the engine has an epoll instance of its own,
which the host loop watches as one readable descriptor.

Rule: a wake-up is one call into C, which reads every ready socket, makes fixed
records and hands on the three kinds that come once a message
(native/binding/dispatch.h); the rarer ones are left to this file.  Each goes to
the one callable that its connection registered for that kind: ``sinks`` take
received bytes, ``readers`` receive into the protocol's own buffer, ``owners`` get
everything else.  A connection that pauses, swaps its protocol or closes changes
its entries; the hot path tests nothing.

Rule: small writes made inside a callback are corked in C until the callback has
returned, so that header and body leave in one segment, and no longer, so that
no connection waits for another's protocol.

The GIL is held around calls that finish in about a microsecond: releasing it
would hand it to a CPU-bound thread for a whole switch interval.  Large copies
use the ``_nogil`` variants.
"""

from __future__ import annotations

import errno
import os
import pathlib
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

try:
    from ._native import ffi, lib
except ImportError as exc:  # pragma: no cover - a broken installation
    here = pathlib.Path(__file__).parent
    raise ImportError(
        f"zcloop is imported from its source folder {here}, which has no compiled core: "
        "run from another folder, or 'pip install -e .' in the clone"
        if (here.parent / "native" / "zcloop.h").exists()
        else "zcloop's native core is missing or doesn't fit this Python; "
        "install zcloop again, on Linux with CPython 3.11 or newer"
    ) from exc

Owner = Any
"""A connection, which has ``_on_filled``, ``_on_eof``, ``_on_error``, ``_on_writable``,
``_on_completed``, ``_on_callback_failed`` and ``_on_cork_stuck``, or a listener, which has
``_on_accepted`` and ``_on_error``."""

__all__ = [
    "CONN_COUNTERS",
    "GIL_HELD_MAX",
    "SCRATCH_BYTES",
    "Engine",
    "PageMemory",
    "ffi",
    "lib",
    "os_error",
]

SCRATCH_BYTES = 256 * 1024
GIL_HELD_MAX = 64 * 1024
"""Bytes up to which a copy or a send is made without releasing the GIL."""

_MAX_ROUNDS = 4
"""Batches that C takes in a row, and times that it is called again after a rare record,
before the host loop's other callbacks get a turn."""

_FREQUENT = (lib.ZC_DATA, lib.ZC_READABLE, lib.ZC_SIZED)
_FILLED = lib.ZC_FILLED
_EOF = lib.ZC_EOF
_ERROR = lib.ZC_ERROR
_WRITABLE = lib.ZC_WRITABLE
_COMPLETED = lib.ZC_COMPLETED
_MORE = lib.ZC_MORE
_SPIN = lib.ZC_SPIN
_SPIN_HIT = lib.ZC_SPIN_HIT
_SPIN_AGAIN = lib.ZC_SPIN_AGAIN
_dispatch = lib.zc_dispatch
_turn = lib.zc_turn
_UNFINISHED = lib.ZC_UNFINISHED
_STAGES = {
    lib.FAILED_DATA_RECEIVED: "data_received",
    lib.FAILED_GET_BUFFER: "get_buffer",
    lib.FAILED_RECEIVE: None,
    lib.FAILED_BUFFER_UPDATED: "buffer_updated",
    lib.FAILED_PAGES_RECEIVED: "pages_received",
}
Reader = tuple[Any, ...]
"""How a buffered protocol is read: get_buffer, its size hint, buffer_updated; and
pages_received, if it takes pages."""

_RECORD = struct.Struct("=IIiI")
_RECORD_BYTES = _RECORD.size


def os_error(code: int, what: str | None = None) -> OSError:
    """The exception for a native function's negative return (``-errno``, ``-ZC_NO_ROOM``)."""
    if code == -lib.ZC_NO_ROOM:
        return OSError(errno.ENOMEM, ffi.string(lib.zc_no_room_text()).decode())
    return OSError(-code, what or os.strerror(-code))


def _discard(data: bytes) -> None:
    """The sink of a slot whose connection no longer wants bytes."""


def _ignore() -> None:
    """The reader of a slot that isn't to be read now; the engine remembers that it is ready."""


class Engine:
    """One native engine and the callables that its records go to.

    Owned by the loop; used only from the loop's thread.
    """

    __slots__ = (
        "__weakref__",
        "_call_soon",
        "_failures",
        "_failures_id",
        "_fd",
        "_left",
        "_poll_scheduled",
        "_readers_id",
        "_records",
        "_remove_reader",
        "_sinks_id",
        "_spin_scheduled",
        "arena_bytes",
        "batching",
        "c",
        "fills",
        "lingering",
        "mapping",
        "owners",
        "readers",
        "receive",
        "sinks",
        "windows_opened",
    )

    def __init__(
        self,
        add_reader: Callable[..., object],
        remove_reader: Callable[[int], object],
        call_soon: Callable[..., object],
        busy_poll: str | int,
        receive: str,
        arena_bytes: int | None,
    ) -> None:
        pointer = lib.zc_engine_new(SCRATCH_BYTES)
        if pointer == ffi.NULL:
            raise OSError(ffi.errno, f"can't set up the event engine: {os.strerror(ffi.errno)}")
        self.c = ffi.gc(pointer, lib.zc_engine_free)
        self._call_soon = call_soon
        self._remove_reader = remove_reader
        self._records = ffi.buffer(lib.zc_engine_records(pointer), _RECORD_BYTES * 256)
        self._fd = lib.zc_engine_fd(pointer)
        self._left: tuple[int, int] | None = None
        self._poll_scheduled = False
        self._spin_scheduled = False
        self.batching = False
        self.receive = receive
        self.arena_bytes = arena_bytes
        self.mapping = ""
        """Whether connections may map what they receive: "on", or why not; "": nobody asked."""
        self.fills = 0
        """How many connections are filling somebody's memory: their copies are large."""
        self.windows_opened = 0
        """How many got a large receive window (native/window.c)."""
        self.sinks: list[Callable[[bytes], object]] = []
        self.readers: list[Reader | Callable[[], object]] = []
        self._failures: list[tuple[int, int, BaseException, bytes | None]] = []
        # The lists live as long as the engine, so their ids stay good.
        self._sinks_id = id(self.sinks)
        self._readers_id = id(self.readers)
        self._failures_id = id(self._failures)
        self.owners: list[Owner | None] = []
        self.lingering: set[Any] = set()
        """Descriptors whose connection has ended with sends in flight (linger.py)."""
        lib.zc_release_orphans()
        if busy_poll == "auto":
            lib.zc_engine_set_spin(self.c, 50_000, 1)
        elif isinstance(busy_poll, int):
            lib.zc_engine_set_spin(self.c, busy_poll * 1000, 0)
        add_reader(self._fd, self._on_ready)

    # -- registration ---------------------------------------------------------

    def add(self, fd: int, owner: Owner, mode: int, flags: int = 0) -> int:
        """Watch a descriptor; returns its slot.  Raises :exc:`OSError`."""
        slot = lib.zc_conn_add(self.c, fd, mode, flags)
        if slot < 0:
            raise os_error(slot)
        if slot >= len(self.owners):
            missing = slot + 1 - len(self.owners)
            self.owners.extend([None] * missing)
            self.sinks.extend([_discard] * missing)
            self.readers.extend([_ignore] * missing)
        self.owners[slot] = owner
        self.mute(slot)
        return int(slot)

    def remove(self, slot: int) -> None:
        """Forget a descriptor; to be called before it is closed."""
        self.mute(slot)
        self.owners[slot] = None
        lib.zc_conn_remove(self.c, slot)

    def mute(self, slot: int) -> None:
        """Drop whatever else this batch holds for a connection."""
        self.sinks[slot] = _discard
        self.readers[slot] = _ignore

    def schedule_poll(self) -> None:
        """Have a batch taken soon: there is work that no edge will announce."""
        if not self._poll_scheduled and not self.batching and self._fd >= 0:
            self._poll_scheduled = True
            self._call_soon(self._on_scheduled)

    def schedule_poll_if_pending(self) -> None:
        """The same, where only the native side knows whether there is work."""
        if not self.batching and lib.zc_engine_pending(self.c):
            self.schedule_poll()

    def close(self) -> None:
        """Stop watching everything.  Sends on connections left behind still work."""
        if self._fd >= 0:
            self._remove_reader(self._fd)
            self._fd = -1
            for left_behind in self.lingering:
                left_behind.orphan()
            self.lingering.clear()
            lib.zc_release_orphans()
            lib.zc_engine_close(self.c)
            # Transports left behind still find their slots, but nothing keeps them alive.
            for slot in range(len(self.owners)):
                self.mute(slot)
                self.owners[slot] = None
            self._left = None

    @property
    def closed(self) -> bool:
        """Whether nothing is watched any more."""
        return self._fd < 0

    # -- the hot path ---------------------------------------------------------

    def _on_ready(self) -> None:
        if self._left is not None:
            (at, count), self._left = self._left, None
            self._dispatch(at, count)
        self.batching = True
        for _ in range(_MAX_ROUNDS):
            advice = _turn(
                self.c,
                self._sinks_id,
                self._readers_id,
                self._failures_id,
                _MAX_ROUNDS,
                self.fills > 0,
            )
            if advice < _UNFINISHED:
                break
            self._dispatch(advice >> 10 & 0x3FF, advice >> 20)
        else:
            advice = lib.zc_engine_settle(self.c)
        self.batching = False
        if advice > 0:
            if advice & _MORE:
                self.schedule_poll()
            elif advice & _SPIN:
                self._schedule_spin()
        elif advice < 0:
            raise os_error(advice)

    def _on_scheduled(self) -> None:
        self._poll_scheduled = False
        if self._fd >= 0:
            self._on_ready()

    def _schedule_spin(self) -> None:
        if not self._spin_scheduled:
            self._spin_scheduled = True
            self._call_soon(self._spin)

    def _spin(self) -> None:
        self._spin_scheduled = False
        if self._fd < 0:
            return
        result = lib.zc_engine_spin_nogil(self.c)
        if result == _SPIN_HIT:
            self._on_ready()
        elif result == _SPIN_AGAIN:
            self._schedule_spin()

    def _dispatch(self, at: int, count: int) -> None:
        """Hand on what C left of a batch: its records [at, count), and a callback's failure."""
        c = self.c
        failures = self._failures
        self.batching = True
        try:
            while True:
                if lib.zc_uncork(c):
                    self.unstick()
                if failures:
                    self._on_failure(*failures.pop())
                elif at < count:
                    slot, what, result, _ = _RECORD.unpack_from(self._records, at * _RECORD_BYTES)
                    if what not in _FREQUENT:
                        at += 1
                        self._dispatch_rare(slot, what, result)
                        continue
                if at == count:
                    break
                at = _dispatch(c, self._sinks_id, self._readers_id, self._failures_id, at, count)
        except BaseException:
            # SystemExit and KeyboardInterrupt, mostly: what is left of the batch, and its
            # scratch, must survive them.
            self.batching = False
            if lib.zc_uncork(c):
                self.unstick()
            lib.zc_engine_settle(c)
            self._left = (at, count)
            self.schedule_poll()
            raise

    def _on_failure(self, slot: int, stage: int, exc: BaseException, rest: bytes | None) -> None:
        owner = self.owners[slot]
        if owner is not None:
            owner._on_callback_failed(_STAGES[stage], exc, rest)
        elif isinstance(exc, (SystemExit, KeyboardInterrupt)):
            raise exc

    def _dispatch_rare(self, slot: int, what: int, result: int) -> None:
        owner = self.owners[slot]
        if owner is None:
            if what == lib.ZC_ACCEPTED:
                os.close(result)
        elif what == _FILLED:
            owner._on_filled()
        elif what == _WRITABLE:
            owner._on_writable()
        elif what == _COMPLETED:
            owner._on_completed()
        elif what == _EOF:
            owner._on_eof()
        elif what == _ERROR:
            owner._on_error(os_error(result))
        else:
            owner._on_accepted(result)

    def uncork(self) -> None:
        """Send what is corked now: somebody is about to act on the descriptor itself."""
        if lib.zc_uncork(self.c):
            self.unstick()

    def unstick(self) -> None:
        """The kernel didn't take all corked bytes: their connection queues the rest."""
        c = self.c
        slot = lib.zc_cork_slot(c)
        error = lib.zc_cork_error(c)
        rest = ffi.new("char[]", lib.ZC_CORK_MAX)
        count = lib.zc_cork_take(c, rest)
        owner = self.owners[slot]
        if owner is not None:
            owner._on_cork_stuck(ffi.buffer(rest, count)[:], error)

    # -- seeing what happens --------------------------------------------------

    def counters(self) -> dict[str, int]:
        """The engine's own counts, by name."""
        stats = lib.zc_engine_counters(self.c)
        counters = {name: int(getattr(stats, name)) for name, _ in _ENGINE_FIELDS}
        counters["zerocopy_lingering"] = len(self.lingering)
        counters["connections"] = sum(owner is not None for owner in self.owners)
        return counters

    def totals(self) -> bytes:
        """The sums over all connections, gone ones included, in the same form as below."""
        out: Any = ffi.new("zc_conn_stats *")
        lib.zc_engine_totals(self.c, out)
        return bytes(ffi.buffer(out))

    def conn_counters(self, slot: int) -> bytes:
        """One connection's counts, as :meth:`ConnStats.from_native` reads them."""
        return bytes(ffi.buffer(lib.zc_conn_counters(self.c, slot)))


def _page_types() -> dict[str, Any]:
    """The heap types of native/binding/page_types.h, which cffi can't name."""
    types: dict[str, Any] = {}
    if lib.zc_page_types(id(types)) < 0:
        raise MemoryError("no memory for the types of zcloop's native core")
    return types


if TYPE_CHECKING:

    class PageMemory:
        """Contiguous memory that received pages can be moved into; read-only for Python."""

        def __new__(cls, nbytes: int, exact: bool = False, fit: bool = False) -> Self: ...
        def __len__(self) -> int: ...
        def __buffer__(self, flags: int, /) -> memoryview: ...
        @property
        def nbytes(self) -> int: ...
        @property
        def exact(self) -> bool: ...
else:
    PageMemory = _page_types()["PageMemory"]


_ENGINE_FIELDS = ffi.typeof("zc_engine_stats").fields
CONN_COUNTERS = tuple(name for name, _ in ffi.typeof("zc_conn_stats").fields)
"""Names of the 64-bit counters that the native side keeps of a connection, in order."""
