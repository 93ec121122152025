"""What becomes of a descriptor whose connection has ended with sends in flight.

Kernel fact: closing a descriptor doesn't stop the kernel from reading the
memory of its zero-copy sends, and closing the last one loses the notices of their completion.
``shutdown`` releases nothing.  ``connect(AF_UNSPEC)`` releases at once, by a reset.
Rule: the table of sends keeps a descriptor of its own, and the peer sees what the close of a
plain socket would show it.  After ``close()`` both directions are shut down: what is in flight is
sent, then FIN, and a peer that sends is reset (tcp_rcv_state_process, RCV_SHUTDOWN); where
something is unread, the peer is reset at once.  The descriptor is closed once the peer has
everything; a peer that takes nothing for the linger time is given up by the kernel
(TCP_USER_TIMEOUT, which bounds the time without progress).  After ``abort()`` it is disconnected,
and closed when the last completion is in, which is as soon as the card has sent what it had been
given.  But where the program hasn't asked for zero copy (``send="auto"``, and no buffer given to
``write_zerocopy`` in flight, whether its future was cancelled or not), ``abort()`` is like
``close()``, as it is to a plain socket: nobody waits for immutable bytes.
SO_LINGER with no seconds means a reset as well, in all cases.
All of this reaches the socket, and so whoever has another descriptor of it; the close of a plain
one doesn't.  How many there are, in this process and others, nobody can ask.
``connection_lost`` doesn't wait for either: it comes when it does in asyncio, once the
kernel has all bytes.

Rejected: disconnecting at every ``abort()``, by which, unasked, a peer lost what asyncio would have
delivered; a timer of our own per closing connection, which ends with the loop; shutting down the
sending half alone, with which a peer that sends before it reads fills a buffer that nobody
empties, and waits for the linger time.
"""

from __future__ import annotations

from .engine import Engine, lib
from .zerocopy import ZeroCopy

__all__ = ["Lingering", "milliseconds"]


class Lingering:
    """Owner, in the engine's table, of a connection that has ended, until its sends are complete.

    What was counted of the connection stays to be read here, completions that come late included.
    """

    __slots__ = ("_engine", "_last_counters", "_slot", "_zerocopy")

    def __init__(self, engine: Engine, slot: int, zerocopy: ZeroCopy) -> None:
        self._zerocopy = zerocopy
        self._engine = engine
        self._slot = slot
        self._last_counters = b""

    def leave(self, *, abort: bool, linger: float, orphan: bool) -> None:
        """Take the slot over from its transport, which closes its descriptor after this.

        ``linger`` is in seconds.
        ``orphan``: nobody will run this engine's loop again.
        """
        engine, slot, zerocopy = self._engine, self._slot, self._zerocopy
        if zerocopy.timer is not None:
            zerocopy.timer.cancel()
            zerocopy.timer = None
        lib.zc_zerocopy_seal(engine.c, slot)
        left = self._release()
        if left:
            lib.zc_zerocopy_take_over(engine.c, slot)
            wanted_back = abort and (zerocopy.forced or zerocopy.flying)
            if wanted_back or lib.zc_zerocopy_finish(engine.c, slot) > 0:
                lib.zc_zerocopy_disconnect(engine.c, slot)
            else:
                lib.zc_linger(engine.c, slot, milliseconds(linger))
            left = self._release()
        if not left:
            self._remove()
        elif orphan:
            engine.mute(slot)
            self.orphan()
            lib.zc_release_orphans()
        else:
            engine.lingering.add(self)
            engine.owners[slot] = self
            engine.mute(slot)
            lib.zc_conn_pause(engine.c, slot)

    def counters(self) -> bytes:
        """The connection's counts: of now, or those it ended with."""
        return self._engine.conn_counters(self._slot) if self._slot >= 0 else self._last_counters

    def orphan(self) -> None:
        """The loop is being closed: the process's list takes over."""
        last = self.counters()
        self._engine.owners[self._slot] = None
        if lib.zc_orphan_adopt(self._engine.c, self._slot) == 0:
            self._last_counters = last
            self._slot = -1
        # else out of memory: its buffers are never let go

    def _release(self) -> int:
        """Let go of what the kernel has let go of; returns how many sends are outstanding.

        A connection that ends with its first large write learns only here that it was copied.
        """
        done: list[int] = []
        left = int(lib.zc_release_completed(self._engine.c, self._slot, id(done)))
        counters = lib.zc_conn_counters(self._engine.c, self._slot)
        zerocopy = self._zerocopy
        zerocopy.judge(counters.zerocopy_completed, counters.zerocopy_copied, _has_ended)
        for number in done:
            zerocopy.flying.pop(number).let_go()
        return left

    def _remove(self) -> None:
        self._last_counters = self.counters()
        self._engine.remove(self._slot)
        self._slot = -1

    def _on_completed(self) -> None:
        if self._release() == 0:
            self._engine.lingering.discard(self)
            self._remove()

    # Nobody reads or writes here any more.

    def _on_writable(self) -> None:
        pass

    def _on_eof(self) -> None:
        pass

    def _on_filled(self) -> None:
        pass

    def _on_error(self, exc: OSError) -> None:
        pass


def _has_ended() -> bool:
    """What completes without having been copied says nothing of the route any more."""
    return False


def milliseconds(seconds: float) -> int:
    """For TCP_USER_TIMEOUT, in which 0 would mean for ever."""
    return max(1, min(round(seconds * 1000), 2**31 - 1))
