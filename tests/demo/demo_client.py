"""Tools of the demo's tests: the application on the test's own loop, and the command."""
import asyncio
import contextlib
import functools
import hashlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import aiohttp

from zcloop.demo.worker import Worker

MIB = 1 << 20


@functools.cache
def noise(size):
    """Bytes that differ everywhere, the same in every run."""
    return hashlib.shake_128(b"zcloop").digest(size)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Site:
    """The application, reached by a client on the same loop."""

    def __init__(self, session, base, folder, switched):
        self.session = session
        self.base = base
        self.folder = folder
        self.switched = switched    # loops that a request asked the parent for

    def request(self, method, path, **kwargs):
        return self.session.request(method, self.base + path, **kwargs)

    async def json(self, method, path, status=200, **kwargs):
        async with self.request(method, path, **kwargs) as response:
            assert response.status == status, (response.status, await response.text())
            return await response.json()

    async def upload(self, data, name="x.bin", status=201, **kwargs):
        if isinstance(data, bytes):
            data = io.BytesIO(data)     # aiohttp warns of large bodies in one piece
        return await self.json("PUT", "/api/files", status, params={"name": name}, data=data,
                               **kwargs)

    def stored(self):
        return sorted(path.name for path in self.folder.glob("*.data"))


@contextlib.asynccontextmanager
async def site(folder, loop_name, max_size=64 * MIB, host="127.0.0.1"):
    sock = socket.create_server(("127.0.0.1", 0))
    switched = []
    settings = {"loop": loop_name, "generation": 1, "host": host, "folder": str(folder),
                "max_size": max_size}
    worker = Worker(settings, switched.append)
    await worker.start(sock)
    try:
        base = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with aiohttp.ClientSession() as session:
            yield Site(session, base, folder, switched)
    finally:
        await worker.stop()
    # The default executor's threads belong to the loop, which the test's runner ends.


class Command:
    """``python -m zcloop demo`` as a process of its own; its temporary folder is in tmp_path."""

    def __init__(self, tmp_path, *arguments, port="0"):
        self.tmp_path = tmp_path
        if port is not None:
            arguments = ("--port", port, *arguments)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "zcloop", "demo", *arguments],
            env=os.environ | {"TMPDIR": str(tmp_path)}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.said = []
        self.base = None

    def __enter__(self):
        self.base = re.search(r"(http://\S+)/$", self.line("http://"))[1]
        self.line("Ctrl-C ends it")
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.terminate()
        self.said += self.process.stdout.read().splitlines()
        self.process.stdout.close()
        self.process.wait()

    def line(self, containing):
        """Wait for a line of output; the process's end instead of it is an error."""
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            if containing in line:
                return self.said[-1]
        raise AssertionError(f"no {containing!r} in {self.said}")

    def json(self, path, method="GET", data=None):
        request = urllib.request.Request(self.base + path, method=method, data=data)
        with urllib.request.urlopen(request) as response:
            return json.loads(response.read())

    def switch(self, loop):
        self.json("/api/loop", "POST", json.dumps({"loop": loop}).encode())
        self.line(f"Now running on {loop}.")

    def folders(self):
        return sorted(self.tmp_path.glob("zcloop-demo-*"))

    def worker(self):
        """The child's process id."""
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(children) as file:
            [child] = map(int, file.read().split())
        return child

    def kill_worker(self):
        os.kill(self.worker(), signal.SIGKILL)


def wait_for(predicate):
    """Poll a state of another process, which nobody announces."""
    async def wait():
        while not predicate():
            await asyncio.sleep(0.01)
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(wait())
