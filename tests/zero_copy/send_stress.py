"""The sender of the stress test: a program, so that it can run with another allocator under it.

    python tests/zero_copy/send_stress.py --seed 7 [--connections 200] [--mib 96] [--send zerocopy]

Connections of one zcloop send pieces of 1 B to 8 MiB, in each way that there is to write, to
checking_peer.py in another process, and end in each way that there is. As soon as zcloop has let go
of a buffer it is overwritten. It prints one line of JSON; `problems` is empty if nothing was wrong.

Everything random comes from the seed, but not the timing: one seed may fail only now and then.
"""
import argparse
import asyncio
import dataclasses
import gc
import json
import math
import random
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

from checking_peer import HEADER, MAX_PIECE, READ, RESET, STALL, stream

import zcloop

KINDS = ("bytes", "bytes", "kept", "view", "mutable", "lines", "zerocopy", "zerocopy", "waited")
ENDINGS = {"close": 7, "cancel": 3, "resume": 3, "abort": 3, "reset": 3}
LINGER = 0.2
LEAST = 16 << 10
"""Bytes from which zcloop is told to go without a copy."""
HELD_BY_KERNELS = 1 << 20
"""Bytes behind a peer's mark that may be acknowledged all the same: twice what the small receive
buffer can hold, and more."""


@dataclasses.dataclass
class Plan:
    """What one connection does: `steps` are (kind, size) of each write."""

    key: int
    steps: list
    ending: str
    behaviour: int
    limit: int
    small: bool
    rng: random.Random

    @property
    def total(self):
        return sum(size for _, size in self.steps)


def plans(seed, keys, budget, endings, send):
    """Sizes are spread evenly over their logarithm; the budget ends the large ones.

    With "auto" abort() leaves to the kernel what it has, for the linger time if the peer stalls:
    see test_zerocopy_abort.py.
    """
    for key in keys:
        rng = random.Random(f"{seed}/{key}")
        ending = rng.choices(list(endings), endings.values())[0]
        steps = []
        for _ in range(rng.randint(1, 6)):
            size = min(int(math.exp(rng.uniform(0, math.log(MAX_PIECE + 1)))), max(1, budget))
            budget -= size
            steps.append((rng.choice(KINDS), size))
        if ending in ("linger", "resume"):      # more than buffers hold, so that it must wait
            steps.append(("zerocopy", rng.randint(2 << 20, 3 << 20)))
        total = sum(size for _, size in steps)
        stalls = ending in ("linger", "resume") or (
            ending == "abort" and send != "auto" and rng.random() < 0.5)
        behaviour = STALL if stalls else RESET if ending == "reset" else READ
        small = stalls or rng.random() < 0.3
        limit = rng.randint(0, min(total, 1 << 20) if stalls else total)
        yield Plan(key, steps, ending, behaviour, limit, small, rng)


class Sender(asyncio.Protocol):
    """Tells about flow control and the end, and nothing else."""

    def connection_made(self, transport):
        self.transport = transport
        self.lost = asyncio.get_running_loop().create_future()
        self.writable = asyncio.Event()
        self.writable.set()

    def pause_writing(self):
        self.writable.clear()

    def resume_writing(self):
        self.writable.set()

    def connection_lost(self, exc):
        self.lost.set_result(exc)
        self.writable.set()


def released(buffer):
    """Whether nobody holds the bytearray: only then can its size change."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True


def scribble(buffer):
    buffer[:] = b"\xee" * len(buffer)


async def turn_until(predicate):
    while not predicate():
        await asyncio.sleep(0.001)


class Run:
    """All connections of one seed, and what was wrong with them."""

    def __init__(self, options):
        self.options = options
        self.problems = []
        self.expected = {}      # key -> (bytes written, whether all of them must have come)
        self.zerocopy_sends = 0

    def say(self, command):
        self.peer.stdin.write(command + "\n")
        self.peer.stdin.flush()

    def check(self, truth, plan, problem):
        if not truth:
            self.problems.append(f"connection {plan.key}, {plan.ending}: {problem}")

    def go(self):
        here = Path(__file__).parent
        command = [sys.executable, str(here / "checking_peer.py")]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as self.peer:
            self.ports = json.loads(self.peer.stdout.readline())
            stats = self.run(self.main(), linger=3600)
            self.run(self.expire(), linger=LINGER)
            self.run(self.leave_some(), linger=3600)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)    # of those left open on purpose
                gc.collect()
            churn = [b"\xcc" * (1 << 20) for _ in range(32)]    # where theirs may have been
            self.say("end")
            self.judge(json.loads(self.peer.stdout.readline()))
            del churn
        return self.report(stats)

    def run(self, coro, linger):
        config = zcloop.Config(
            send=self.options.send, zerocopy_threshold=LEAST, zerocopy_linger=linger)
        return zcloop.run(coro, config=config)

    async def main(self):
        """All endings that need not wait for a time."""
        count, budget = self.options.connections, self.options.mib << 20
        chosen = list(plans(self.options.seed, range(1, count + 1), budget, ENDINGS,
                            self.options.send))
        await asyncio.gather(*(Connection(self, plan).main() for plan in chosen))
        stats = asyncio.get_running_loop().zcloop_stats
        await turn_until(lambda: not stats().zerocopy_outstanding)      # of those long closed
        return stats()

    async def expire(self):
        """Peers that never read on; only what is under way without a copy is given up by itself."""
        if self.options.send in ("zerocopy", "pages"):
            keys = range(1_000_001, 1_000_011)
            chosen = list(plans(self.options.seed, keys, 8 << 20, {"linger": 1},
                                self.options.send))
            await asyncio.gather(*(Connection(self, plan).main() for plan in chosen))

    async def leave_some(self):
        for key in range(2_000_001, 2_000_009):
            await self.leave(key)

    async def leave(self, key):
        """A connection that nobody ends: the loop is closed with its sends under way."""
        steps = [("bytes", 3 << 20), ("zerocopy", 1 << 20)]
        connection = Connection(self, Plan(key, steps, "leave", STALL, 1000, True, None))
        await connection.open()
        for kind, size in steps:
            connection.write(kind, size)
        self.expected[key] = (connection.offset, False)

    def judge(self, report):
        for plan_key, (written, complete) in self.expected.items():
            received, wrong, how = report.get(str(plan_key), (0, -1, "never came"))
            if wrong >= 0:
                self.problems.append(f"connection {plan_key}: wrong bytes from {wrong} on")
            if received > written or (complete and (received < written or how != "eof")):
                self.problems.append(
                    f"connection {plan_key}: {received} of {written} bytes, then {how}")

    def report(self, stats):
        counted = dataclasses.asdict(stats)
        counted |= counted.pop("totals")
        for name in ("zerocopy_outstanding", "zerocopy_pinned"):
            if counted[name]:
                self.problems.append(f"{name} is {counted[name]} after the last connection")
        if self.options.send != "copy" and not counted["zerocopy_sends"]:
            self.problems.append("there was no zero-copy send at all")
        return {"seed": self.options.seed, "problems": self.problems[:20],
                "bytes": sum(written for written, _ in self.expected.values()),
                "stats": {k: v for k, v in counted.items() if k.startswith("zerocopy")}}


class Connection:
    def __init__(self, run, plan):
        self.run = run
        self.plan = plan
        self.offset = 0
        self.kept = []          # (bytes, references to it before it was written)
        self.lent = []          # (bytearray, future, offset behind it)
        self.tasks = []

    async def open(self):
        loop = asyncio.get_running_loop()
        port = self.run.ports[self.plan.small]
        self.transport, self.protocol = await loop.create_connection(Sender, "127.0.0.1", port)
        plan = self.plan
        self.transport.write(HEADER.pack(plan.key, plan.behaviour, plan.limit))

    async def main(self):
        plan = self.plan
        await self.open()
        ends_after = plan.rng.randint(1, len(plan.steps)) if plan.ending == "abort" else None
        for number, (kind, size) in enumerate(plan.steps, 1):
            if self.transport.is_closing():     # the peer may have gone
                break
            self.write(kind, size)
            if number == ends_after:
                break
            # A peer that stalls would keep us for ever.
            if plan.behaviour != STALL and plan.rng.random() < 0.7:
                await self.protocol.writable.wait()
            elif plan.rng.random() < 0.5:
                await asyncio.sleep(0)
        await self.end()
        await self.all_let_go()
        complete = plan.ending in ("close", "cancel", "resume")
        self.run.expected[plan.key] = (self.offset, complete)

    def write(self, kind, size):
        """One write; what it leaves to us is overwritten as soon as nobody holds it."""
        transport, rng = self.transport, self.plan.rng
        data = stream(self.plan.key, self.offset, size)
        self.offset += size
        if kind == "bytes" or (kind == "kept" and size == 1):     # a shared object, that one
            transport.write(data)           # the last reference here; freed memory is overwritten
        elif kind == "view":
            transport.write(memoryview(data))
        elif kind == "kept":
            entry = [data, 0]
            del data
            entry[1] = sys.getrefcount(entry[0])
            self.kept.append(entry)
            transport.write(entry[0])
        elif kind == "mutable":
            buffer = bytearray(data)
            transport.write(buffer)
            scribble(buffer)                # a plain write has copied it
        elif kind == "lines":
            cuts = sorted(rng.randint(0, size) for _ in range(rng.randint(1, 40)))
            transport.writelines(
                [data[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True)])
        else:
            self.lend(kind, bytearray(data))

    def lend(self, kind, buffer):
        future = self.transport.write_zerocopy(buffer)
        self.lent.append((buffer, future, self.offset))
        if kind == "waited" or self.plan.ending == "cancel":
            task = asyncio.ensure_future(self.wait_for(buffer, future))
            self.tasks.append(task)
            if self.plan.ending == "cancel":
                asyncio.get_running_loop().call_later(self.plan.rng.random() / 500, task.cancel)
        else:
            future.add_done_callback(partial(self.let_go, buffer))

    def let_go(self, buffer, future):
        self.run.check(released(buffer), self.plan, "done, and the buffer is still held")
        future.exception()                  # of a connection that was lost: seen
        scribble(buffer)

    async def wait_for(self, buffer, future):
        try:
            await future
        except asyncio.CancelledError:
            await turn_until(lambda: released(buffer))      # cancelled is the waiting, not the hold
        except OSError:
            pass
        self.let_go_now(buffer)

    def let_go_now(self, buffer):
        self.run.check(released(buffer), self.plan, "done, and the buffer is still held")
        scribble(buffer)

    async def end(self):
        plan, transport, lost = self.plan, self.transport, self.protocol.lost
        if plan.behaviour == STALL and not lost.done():
            await asyncio.sleep(plan.rng.random() / 50)     # some rounds, in which nothing may end
            self.none_ended_early()
        if plan.ending == "abort":
            transport.abort()
        elif plan.ending == "reset":
            await self.protocol.writable.wait()
            if plan.limit < self.offset:
                await lost
            transport.close()
        else:
            transport.close()
            if plan.ending == "resume":
                await asyncio.sleep(plan.rng.random() / 50)
                self.none_ended_early()
                self.run.say(f"resume {plan.key}")
        exc = await lost
        if plan.ending in ("close", "cancel", "resume", "abort"):
            self.run.check(exc is None, plan, f"connection_lost({exc!r})")

    def none_ended_early(self):
        """The peer has not taken the end of these buffers: the kernel can't have let go."""
        counters = dataclasses.asdict(self.transport.get_extra_info("zcloop"))
        copied = sum(n for name, n in counters.items() if name.startswith("zerocopy_fallback"))
        if copied or self.run.options.send == "copy":
            return                          # then they were free at once
        for buffer, future, end in self.lent:
            if end > self.plan.limit + HELD_BY_KERNELS and len(buffer) > LEAST:
                self.run.check(not future.done() and not released(buffer), self.plan,
                               f"the buffer that ends at {end} was let go, the peer stopped at "
                               f"{self.plan.limit}")

    async def all_let_go(self):
        """Whatever happened to the connection, and then nobody holds anything (or this hangs)."""
        for task in self.tasks:
            await asyncio.wait([task])
        for buffer, future, _ in self.lent:
            await turn_until(lambda b=buffer: released(b))
            self.run.check(future.done(), self.plan, "let go, and the future isn't done")
        for entry in self.kept:
            await turn_until(lambda e=entry: sys.getrefcount(e[0]) == e[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--mib", type=int, default=96, help="bytes in all, about")
    parser.add_argument("--send", default="zerocopy")
    options = parser.parse_args()
    print(json.dumps(Run(options).go()), flush=True)


if __name__ == "__main__":
    main()
