"""One sample: a fresh server process, a fresh load generator, one record of what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from . import build
from .cases import Case
from .sides import Side

ROOT = Path(__file__).parent.parent
# The servers find installed packages first and the working tree last, so that what is measured is
# the zcloop that is installed, unless only the tree has one.
_BOOT = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from benchmarks.servers.main import main; main(sys.argv[1:])"
)
# A hung process must not hang the run; the load generator itself gives up after 20 s of silence.
EXTRA_SECONDS = 60.0
# The measured phase ends with the first event after its time; when that took so much longer, one of
# the processes was stopped or starved, and the figures say nothing about the loop.
LATE_SECONDS = 1.0


@dataclass(frozen=True)
class Place:
    """Where the two processes run: the commands that put them there (and then become them), and the
    server's IPv4 address, which servers that can be elsewhere read from BENCH_HOST."""

    host: str = "127.0.0.1"
    server: tuple[str, ...] = ()
    client: tuple[str, ...] = ()


LOOPBACK = Place()


@dataclass(frozen=True)
class Setting:
    """How samples are taken. `cpus`: the server's and the load generator's; None: the scheduler's
    choice."""

    seconds: float
    warmup: float
    cpus: tuple[int, int] | None
    place: Place = LOOPBACK


def server_command(case: Case, side: Side, place: Place = LOOPBACK) -> list[str]:
    if not side.factory:
        name, *arguments = side.program
        return [*place.server, str(build.c_server(name)), str(case.size), *arguments]
    return [
        *place.server,
        *(sys.executable, "-P", "-c", _BOOT, str(ROOT)),
        *("--loop", side.factory, "--kind", case.kind, "--size", str(case.size)),
        *case.server_args,
    ]


def load_command(case: Case, setting: Setting, port: int, pid: int) -> list[str]:
    command = [*setting.place.client, str(build.loadgen()), *case.load]
    command += ["--host", setting.place.host, "--port", str(port), "--pid", str(pid)]
    if not case.fixed_work:
        command += ["--seconds", str(setting.seconds), "--warmup", str(setting.warmup)]
    return command


def default_cpus() -> tuple[int, int] | None:
    """The two lowest CPUs that this process may use; None where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else None


@contextmanager
def _children_on(cpu: int | None) -> Iterator[None]:
    """Processes started inside run on `cpu` from their first instruction: affinity is inherited."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _stop(server: subprocess.Popen[str]) -> dict[str, Any]:
    """Ends the server by closing its standard input; its last line is its own resource usage."""
    assert server.stdin
    assert server.stdout
    server.stdin.close()
    try:
        server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
        return {"stop": "had to be killed 20 s after its standard input was closed"}
    last = server.stdout.read().strip()
    record: dict[str, Any] = json.loads(last) if last else {}
    if server.returncode != 0:
        record["stop"] = f"exit status {server.returncode}"
    return record


def _load(command: list[str], limit: float, cpu: int | None) -> dict[str, Any]:
    with _children_on(cpu):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    with process:
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"error": f"the load generator did not end within {limit:.0f} s"}
    try:
        record: dict[str, Any] = json.loads(output)
    except ValueError:
        return {"error": f"load generator, exit status {process.returncode}: {errors.strip()}"}
    return record


def _ready(server: subprocess.Popen[str]) -> dict[str, Any]:
    assert server.stdout
    line = server.stdout.readline()
    return json.loads(line) if line else {}


def take(case: Case, side: Side, setting: Setting, data_file: Path | None = None) -> dict[str, Any]:
    """Runs one sample.

    Returns:
        The load generator's record (see native/meter.c) with the server's under ``server_exit``, or
        with an ``error`` that says what went wrong. Server output on stderr is under ``stderr``.
    """
    env = {**os.environ, **dict(case.env), **side.env, "BENCH_HOST": setting.place.host}
    if data_file is not None:
        env["BENCH_FILE"] = str(data_file)
    cpus = setting.cpus if case.pinned and setting.cpus else (None, None)
    with tempfile.TemporaryFile("w+") as errors:
        with _children_on(cpus[0]):
            server = subprocess.Popen(
                server_command(case, side, setting.place),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=env,
            )
        with server:
            ready = _ready(server)
            if ready:
                command = load_command(case, setting, ready["port"], server.pid)
                limit = setting.seconds + setting.warmup + EXTRA_SECONDS
                record = _load(command, limit, cpus[1])
            else:
                record = {"error": "the server did not start"}
            late = record.get("seconds", 0.0) - setting.seconds
            if not case.fixed_work and "error" not in record and late > LATE_SECONDS:
                record["error"] = f"the measured phase took {late:.1f} s longer than it should"
            record["server_exit"] = _stop(server)
            record["loop"] = ready.get("loop", "C")
        _note_errors(record, errors)
    return record


def _note_errors(record: dict[str, Any], errors: IO[str]) -> None:
    errors.seek(0)
    text = errors.read().strip()
    if text:
        record["stderr"] = text[-2000:]
        if "error" in record:
            record["error"] += f" ({text.splitlines()[-1]})"
