"""TLS servers compared: ``python -m benchmarks.tls``.

The load generator in C speaks no TLS, so these cases bring their own, on uvloop, the same for all
sides. It costs as much as the servers do: with more than one connection the rate is partly its own,
and server CPU per unit is the figure to compare.

==========================  ===================================================================
case                        a unit is
==========================  ===================================================================
``tls/echo/1024/c{1,16}``   a message there and back, one in flight per connection; ``Protocol``
``tls/streams/1024/c...``   the same, ``StreamReader.read`` and ``StreamWriter.write``
``tls/bulk-in``             a MiB received by the server, which answers each with a byte
``tls/bulk-out``            a MiB that the client received
``tls/connect/1024/c16``    connect, handshake (TLS 1.3, no resumption), one echo, close
==========================  ===================================================================

One process per sample, sides interleaved, ratios within a round: as in README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, cast

import uvloop

from .sample import ROOT, _children_on, default_cpus
from .servers.main import loop_factory
from .servers.pattern import PERIOD, Checker, pattern
from .servers.protocols import Echo, Source
from .sides import BASE, Side, parse_side

MIB = 1 << 20
WINDOW = 4
"""MiB that the client of bulk-in lets be unanswered."""

CASES = (
    "tls/echo/1024/c1",
    "tls/echo/1024/c16",
    "tls/streams/1024/c1",
    "tls/streams/1024/c16",
    "tls/bulk-in",
    "tls/bulk-out",
    "tls/connect/1024/c16",
)


# -- the server ---------------------------------------------------------------


class Acknowledge(asyncio.Protocol):
    """Answers each MiB with a byte; hangs up when the stream isn't the pattern."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.checker = Checker()
        self.answered = 0

    def data_received(self, data: bytes) -> None:
        self.checker.feed(data[0], len(data))
        if self.checker.wrong:
            self.transport.abort()
        due = self.checker.received // MIB - self.answered
        if due:
            self.answered += due
            self.transport.write(b"." * due)


async def echo_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def serve(case: str, folder: Path) -> None:
    loop = asyncio.get_running_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    kind = case.split("/")[1]
    piece = pattern(PERIOD * 16)  # whole periods, so that the stream is the pattern throughout
    factories: dict[str, Callable[[], asyncio.Protocol]] = {
        "echo": Echo,
        "connect": Echo,
        "bulk-in": Acknowledge,
        "bulk-out": lambda: Source(piece),
    }
    if kind == "streams":
        server = await asyncio.start_server(echo_stream, "127.0.0.1", 0, ssl=context, backlog=1024)
    else:
        server = await loop.create_server(
            factories[kind], "127.0.0.1", 0, ssl=context, backlog=1024
        )
    ended = asyncio.Event()
    loop.add_reader(0, ended.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    loop.remove_reader(0)
    server.close()


# -- the load -----------------------------------------------------------------


class Meter:
    """Counts units, and what the server's CPU clock did while they were counted."""

    def __init__(self, pid: int) -> None:
        self._clock = (~pid << 3) | 2  # clock_getcpuclockid(3): CPUCLOCK_SCHED of a process
        self.units = 0

    async def measure(self, warmup: float, seconds: float) -> dict[str, float]:
        await asyncio.sleep(warmup)
        units, began = self.units, time.monotonic()
        server, own = time.clock_gettime(self._clock), time.process_time()
        await asyncio.sleep(seconds)
        server, own = time.clock_gettime(self._clock) - server, time.process_time() - own
        units, took = self.units - units, time.monotonic() - began
        if not units:
            raise SystemExit("not a single unit was served")
        return {
            "rate": units / took,
            "cpu_us": server * 1e6 / units,
            "client_share": own / took,
        }


class Client(asyncio.Protocol):
    """Base of the clients: a connection that is lost before the end is a failed sample."""

    def __init__(self, meter: Meter, failed: asyncio.Future[None], number: int) -> None:
        self.meter = meter
        self.failed = failed
        self.number = number

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"connection lost: {exc!r}")

    def fail(self, message: str) -> None:
        if not self.failed.done():
            self.failed.set_exception(RuntimeError(message))

    def start(self) -> None:
        pass


class EchoClient(Client):
    def start(self) -> None:
        self.count = 0
        self.send()

    def send(self) -> None:
        self.message = (b"%8d%8d" % (self.number, self.count)).ljust(1024, b".")
        self.incoming = b""
        self.transport.write(self.message)

    def data_received(self, data: bytes) -> None:
        self.incoming += data
        if len(self.incoming) >= 1024:
            if self.incoming != self.message:
                self.fail("an echo came back wrong")
            self.meter.units += 1
            self.count += 1
            self.send()


class ConnectClient(EchoClient):
    """One echo, then close; ``again`` opens the next connection."""

    again: Callable[[int], None]

    def send(self) -> None:
        if self.count:
            self.meter.units -= 1  # counted when closed
            self.transport.close()
        else:
            super().send()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None or not self.count:
            self.fail(f"connection lost: {exc!r}")
        self.meter.units += 1
        self.again(self.number)


class FeedClient(Client):
    def start(self) -> None:
        self.piece = memoryview(pattern(MIB + PERIOD))
        self.sent = 0
        for _ in range(WINDOW):
            self.send()

    def send(self) -> None:
        start = self.sent % PERIOD
        self.sent += MIB
        self.transport.write(self.piece[start : start + MIB])

    def data_received(self, data: bytes) -> None:
        for _ in data:
            self.meter.units += 1
            self.send()


class DrainClient(Client):
    def start(self) -> None:
        self.checker = Checker()

    def data_received(self, data: bytes) -> None:
        self.checker.take(data)
        if self.checker.wrong:
            self.fail("the stream is not the pattern")
        self.meter.units = self.checker.received // MIB


async def load(case: str, folder: Path, port: int, pid: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context(cafile=folder / "cert.pem")
    failed = loop.create_future()
    meter = Meter(pid)
    kind = case.split("/")[1]
    client: type[Client] = {
        "echo": EchoClient,
        "streams": EchoClient,
        "connect": ConnectClient,
        "bulk-in": FeedClient,
        "bulk-out": DrainClient,
    }[kind]
    connecting = set()

    async def connect(number: int) -> None:
        try:
            await loop.create_connection(
                lambda: client(meter, failed, number),
                *("127.0.0.1", port),
                ssl=context,
                server_hostname="localhost",
            )
        except OSError as exc:
            if not failed.done():
                failed.set_exception(exc)

    def again(number: int) -> None:
        task = loop.create_task(connect(number))
        connecting.add(task)
        task.add_done_callback(connecting.discard)

    ConnectClient.again = staticmethod(again)
    connections = int(case.rpartition("/c")[2]) if case[-1].isdigit() else 1
    for number in range(connections):
        await connect(number)
    measured = asyncio.ensure_future(meter.measure(seconds / 4, seconds))
    await asyncio.wait([measured, failed], return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        failed.result()
    print(json.dumps(measured.result()), flush=True)
    os._exit(0)  # the connections need no orderly end


# -- the run ------------------------------------------------------------------


def make_certificate(folder: Path) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)


def take(case: str, side: Side, folder: Path, seconds: float) -> dict[str, float]:
    """One sample: rate, server CPU in microseconds per unit, the client's share of its CPU."""
    cpus = default_cpus() or (None, None)
    program = [sys.executable, "-m", "benchmarks.tls", "--case", case, "--folder", str(folder)]
    pipe = subprocess.PIPE
    with _children_on(cpus[0]):
        server = subprocess.Popen(
            [*program, "--serve", side.factory],
            stdin=pipe,
            stdout=pipe,
            cwd=ROOT,
            text=True,
            env={**os.environ, **side.env},
        )
    with server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        if not port:
            raise SystemExit(f"{side.name} doesn't serve")
        to = ["--port", port, "--pid", str(server.pid), "--seconds", str(seconds)]
        with _children_on(cpus[1]):
            client = subprocess.run([*program, *to], cwd=ROOT, stdout=pipe, text=True, check=False)
        server.terminate()
    if client.returncode:
        raise SystemExit(f"{case} on {side.name}: the client failed")
    sample: dict[str, float] = json.loads(client.stdout)
    return sample


def run(cases: list[str], sides: list[Side], rounds: int, seconds: float) -> None:
    print(
        f"{'case':22} {'side':24} {'cpu/unit':>10} {'rate':>9} {'cpu x':>6} {'rate x':>6}  spread"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_certificate(folder)
        for case in cases:
            samples: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
            for number in range(rounds):
                start = number % len(sides)
                for side in [*sides[start:], *sides[:start]]:
                    samples[side.name].append(take(case, side, folder, seconds))
            for side in sides:
                print(line(case, side.name, samples), flush=True)


def line(case: str, side: str, samples: dict[str, list[dict[str, float]]]) -> str:
    """Medians of a side; ratios are taken within a round, the spread is the CPU ratio's."""
    ours = samples[side]
    base = samples.get(BASE, next(iter(samples.values())))

    def ratios(key: str) -> list[float]:
        return sorted(a[key] / b[key] for a, b in zip(ours, base, strict=True))

    cpu = ratios("cpu_us")
    return (
        f"{case:22} {side:24} {median(s['cpu_us'] for s in ours):8.1f}us "
        f"{median(s['rate'] for s in ours):7.0f}/s {median(cpu):6.3f} "
        f"{median(ratios('rate')):6.3f}  {cpu[0]:.2f}..{cpu[-1]:.2f}, "
        f"client {median(s['client_share'] for s in ours):.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.tls", description="TLS servers compared")
    parser.add_argument("--only", default="", help="cases whose id has this in it")
    parser.add_argument("--sides", default="uvloop,zcloop")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    for internal in ("--case", "--serve", "--port", "--pid", "--folder"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    options: Any = parser.parse_args()
    if options.serve:
        factory = loop_factory(options.serve)
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(serve(options.case, Path(options.folder)))
    elif options.case:
        port, pid = int(options.port), int(options.pid)
        coro = load(options.case, Path(options.folder), port, pid, options.seconds)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(coro)
    else:
        cases = [case for case in CASES if options.only in case]
        sides = [parse_side(name) for name in options.sides.split(",")]
        run(cases, sides, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
