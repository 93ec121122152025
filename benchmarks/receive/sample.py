"""One sample: a fresh receiver, a fresh sender of the C program, one record of what happened."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import cffi

from .. import build
from ..sample import ROOT, _children_on
from .cells import Cell, Side
from .netns import Route

_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from benchmarks.receive.receiver import main; main(sys.argv[1:])"
)
# The C program gives up after 20 s of silence; this is for what hangs without being silent.
LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Setting:
    """`cpus`: the receiver's and the sender's; None: the scheduler's choice."""

    cpus: tuple[int, int] | None
    hash: bool = True


@cache
def expected(nbytes: int, header: int, size: int) -> str:
    """The hash of a whole stream, as the receivers print it."""
    ffi = cffi.FFI()
    ffi.cdef("uint64_t zcref_expected(uint64_t bytes, size_t header, size_t size);")
    lib: Any = ffi.dlopen(str(build.reference_hash()))
    return f"{lib.zcref_expected(nbytes, header, size):016x}"


def receiver_command(cell: Cell, side: Side, host: str, hashed: bool, nbytes: int) -> list[str]:
    numbers = {
        "size": cell.size,
        "header": cell.header,
        "answer": cell.answer,
        "warmup": min(cell.warmup, nbytes // 4),
        "mss": cell.mss,
        "lowat": side.lowat,
    }
    words = [word for key, value in numbers.items() for word in (f"--{key}", str(value))]
    words += ["--host", host]
    if side.loop:
        boot = [sys.executable, "-P", "-c", _BOOT, str(ROOT)]
        words += ["--library", str(build.reference_hash()), *(["--hash"] if hashed else [])]
        return [*boot, "--loop", side.loop, "--kind", side.kind, *words]
    words += ["--bytes", str(nbytes)] if hashed else ["--bytes", str(nbytes), "--no-hash"]
    return [str(build.reference()), "receive", side.kind, *words]


def sender_command(cell: Cell, host: str, port: int, nbytes: int) -> list[str]:
    return [
        *(str(build.reference()), "send", cell.sender, "--host", host, "--port", str(port)),
        *("--bytes", str(nbytes), "--size", str(cell.write or cell.size)),
        *("--mss", str(cell.mss), "--pace", str(cell.pace)),
        *("--header", str(cell.header), "--answer", str(cell.answer)),
    ]


def _parsed(text: str) -> dict[str, Any]:
    lines = text.strip().splitlines()
    try:
        record: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": "no record"}
    except ValueError:
        record = {"error": f"not a record: {lines[-1][:200]}"}
    return record


def _machine_seconds() -> float:
    """Time that all CPUs were busy: user, nice, system, irq, softirq, steal."""
    fields = Path("/proc/stat").read_text().split(None, 9)
    return sum(int(fields[at]) for at in (1, 2, 3, 6, 7, 8)) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class _Receiver:
    """The receiving process, and what it was started under; killed when the sample is over."""

    def __init__(self, command: list[str], env: dict[str, str], cpu: int | None) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by __exit__
        pipe = subprocess.PIPE
        with _children_on(cpu):
            self.process = subprocess.Popen(
                command,
                stdout=pipe,
                stderr=self.errors,
                text=True,
                env=env,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        assert self.process.stdout
        line = self.process.stdout.readline()
        self.first: dict[str, Any] = (
            _parsed(line) if line else {"error": "the receiver did not start"}
        )
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.communicate()
        self.errors.close()

    def record(self) -> dict[str, Any]:
        if "port" in self.first:
            try:
                output, _ = self.process.communicate(timeout=LIMIT_SECONDS)
                record = _parsed(output)
            except subprocess.TimeoutExpired:
                record = {"error": f"the receiver did not end within {LIMIT_SECONDS:.0f} s"}
        else:
            record = self.first
            self.process.wait()
        self.errors.seek(0)
        if text := self.errors.read().strip():
            record["stderr"] = text[-2000:]
            if "error" in record:
                record["error"] += f" ({text.splitlines()[-1]})"
        return record


def _send(command: list[str], cpu: int | None) -> dict[str, Any]:
    with _children_on(cpu):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            return _parsed(process.communicate(timeout=LIMIT_SECONDS)[0])
        except subprocess.TimeoutExpired:
            return {"error": f"the sender did not end within {LIMIT_SECONDS:.0f} s"}
        finally:
            process.kill()


def take(
    cell: Cell,
    side: Side,
    setting: Setting,
    route: Route,
    before: tuple[str, ...] = (),
    nbytes: int = 0,
) -> dict[str, Any]:
    """Runs one sample.

    `before` is put before the receiver's command. `nbytes` replaces the cell's.

    Returns:
        The receiver's record (see receiver.py) with the sender's under ``sender`` and the number
        of CPUs that other programs kept busy under ``others_cpus``, or with an ``error``.
    """
    nbytes = nbytes or cell.nbytes
    cpus = setting.cpus or (None, None)
    env = {**os.environ, **dict(side.env)}
    began, machine, own = time.monotonic(), _machine_seconds(), _own_seconds()
    command = receiver_command(cell, side, route.host, setting.hash, nbytes)
    with _Receiver([*route.receiver, *before, *command], env, cpus[0]) as receiver:
        sender: dict[str, Any] = {}
        if port := receiver.first.get("port", 0):
            to = sender_command(cell, route.host, port, nbytes)
            sender = _send([*route.sender, *to], cpus[1])
            if "error" in sender:
                os.killpg(receiver.process.pid, signal.SIGTERM)
        record = receiver.record()
    record["sender"] = sender
    others = _machine_seconds() - machine - (_own_seconds() - own)
    record["others_cpus"] = max(0.0, others / (time.monotonic() - began))
    if "error" in sender:
        record["error"] = f"sender: {sender['error']}; receiver: {record.get('error', 'no error')}"
    elif "error" not in record:
        _verify(record, cell, setting, nbytes)
    return record


def _verify(record: dict[str, Any], cell: Cell, setting: Setting, nbytes: int) -> None:
    if record["bytes"] != nbytes:
        record["error"] = f"{record['bytes']} bytes came, and not {nbytes}"
    elif setting.hash and record["hash"] != expected(nbytes, cell.header, cell.size):
        record["error"] = "the bytes that came are not those that were sent"


def _counts(summary: str) -> dict[str, int]:
    """Calls by name, from strace -c: the fourth column is the count, the last the name."""
    rows = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", summary, re.MULTILINE)
    return {name: int(count) for count, name in rows if name != "total"}


def calls_per_message(cell: Cell, side: Side, setting: Setting, route: Route) -> dict[str, Any]:
    """System calls of the receiver for each message, by name: the difference between two runs of
    different length under ``strace -c``, so that what a process does once doesn't count."""
    message = cell.header + cell.size
    lengths = [message * count for count in (500, 500 + cell.nbytes // message)]
    counted: list[dict[str, int]] = []
    for nbytes in lengths:
        with tempfile.NamedTemporaryFile("r") as summary:
            before = ("strace", "-f", "-c", "-o", summary.name)
            record = take(cell, side, setting, route, before, nbytes)
            if "error" in record:
                return record
            counted.append(_counts(summary.read()))
    messages = (lengths[1] - lengths[0]) // message
    calls = {
        name: round((counted[1][name] - counted[0].get(name, 0)) / messages, 4)
        for name in counted[1]
    }
    return {**record, "calls": {name: count for name, count in calls.items() if count > 0.01}}
