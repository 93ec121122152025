"""Run the suite in worker processes, and survive what happens in them.

One worker per module at a time. A test that makes no progress for `timeout` seconds, or that takes
the process with it, is marked, and the rest of its module goes on in a fresh worker.
"""

from __future__ import annotations

import json
import math
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .outcome import Outcome, Result

# For what comes before the first test: importing the loop and the module, setUpModule, setUpClass.
STARTUP_TIMEOUT = 120.0
SLICE = 0.5
STDERR_CHARS = 2000
PACKAGE = Path(__file__).resolve().parent
# Not the repository: the loop under test must be the installed one.
IMPORT_PATH: Sequence[Path] = (PACKAGE.parent,)


class Stalled(Exception):
    """The worker was silent for longer than it may be."""


class Worker:
    """The parent's view of a running worker: records out of a pipe, standard error in a file."""

    def __init__(self, pipe: int, stderr: IO[bytes]) -> None:
        self._pipe = pipe
        self._stderr = stderr

    def records(self, timeout: float) -> Iterator[dict[str, Any]]:
        """Yield records until the worker closes the pipe. Raises Stalled."""
        limit = STARTUP_TIMEOUT
        pending = b""
        while self._readable_within(limit):
            chunk = os.read(self._pipe, 1 << 16)
            if not chunk:
                return
            limit = timeout
            *lines, pending = (pending + chunk).split(b"\n")
            yield from map(json.loads, lines)
        raise Stalled

    def _readable_within(self, seconds: float) -> bool:
        # In slices: when the machine or this process group was suspended, that costs one of them
        # and isn't taken for a hang.
        slices = math.ceil(seconds / SLICE)
        return any(select.select([self._pipe], [], [], SLICE)[0] for _ in range(slices))

    def last_words(self) -> str:
        """The end of what the worker and its children wrote on standard error."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-STDERR_CHARS:]


@contextmanager
def start_worker(loop: str, module: str, ids: Sequence[str]) -> Iterator[Worker]:
    """Start a worker for `ids` of `module` (none: to list them); kill its session at the end."""
    import_path = os.pathsep.join(map(str, IMPORT_PATH))
    pipe, write_end = os.pipe()
    with (
        os.fdopen(pipe, "rb"),
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stderr,
        tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as directory,
    ):
        stdin.write("\n".join(ids).encode())
        stdin.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", f"{PACKAGE.name}.worker", loop, module, str(write_end)],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=(write_end,),
            env={**os.environ, "PYTHONPATH": import_path, "PYTHONWARNINGS": "ignore"},
            cwd=directory,  # the suite writes files into its working directory
            start_new_session=True,
        )
        os.close(write_end)
        try:
            yield Worker(pipe, stderr)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def list_tests(loop: str, module: str) -> list[str]:
    """The ids of the tests in `module`. Raises RuntimeError if it can't be loaded."""
    with start_worker(loop, module, ()) as worker:
        records = list(worker.records(STARTUP_TIMEOUT))
        if not records or not records[-1].get("end"):
            raise RuntimeError(f"can't load {module} with {loop}:\n{worker.last_words()}")
    return [record["id"] for record in records[:-1]]


def run_module(loop: str, module: str, ids: Sequence[str], timeout: float) -> Iterator[Result]:
    """Run `ids` of `module` and yield their results as they come.

    A second result for an id replaces the first: the worker died right after the test.
    """
    left = list(ids)
    while left:
        for result in _run_until_end_or_death(loop, module, tuple(left), timeout):
            if result.id in left:
                left.remove(result.id)
            yield result


def _run_until_end_or_death(
    loop: str, module: str, ids: Sequence[str], timeout: float
) -> Iterator[Result]:
    """One worker's life, with at least one result."""
    running = finished = None
    with start_worker(loop, module, ids) as worker:
        death = Outcome.CRASH
        try:
            for record in worker.records(timeout):
                if record.get("end"):
                    return
                if "start" in record:
                    running = record["start"]
                else:
                    running, finished = None, Result.from_json(record)
                    yield finished
        except Stalled:
            death = Outcome.TIMEOUT
        detail = worker.last_words()
    if running is not None:
        yield Result(running, death, detail)
    elif finished is not None:
        yield Result(finished.id, death, f"after the test: {detail}")
    else:
        for test_id in ids:
            yield Result(test_id, death, f"before the first test: {detail}")


def run_modules(
    loop: str,
    tests: Mapping[str, Sequence[str]],
    *,
    workers: int,
    timeout: float,
    on_result: Callable[[Result], None],
) -> dict[str, Result]:
    """Run `tests` (module -> ids), `workers` modules at a time; the results by id."""
    results: dict[str, Result] = {}
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for module in tests:
        todo.put(module)

    def work() -> None:
        while True:
            try:
                module = todo.get_nowait()
            except queue.Empty:
                return
            for result in run_module(loop, module, tests[module], timeout):
                results[result.id] = result
                on_result(result)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
