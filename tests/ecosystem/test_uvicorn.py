"""uvicorn, by its command line with --loop and inside a running loop: requests, a large upload, a
streaming response, a WebSocket, lifespan, and the graceful end by SIGTERM, with both of its HTTP
implementations; the client is httpx, on the loop under test as well."""
import asyncio
import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import asgi_app
import httpx
import pytest
import uvicorn
import websockets
from http_tools import Source, child_environment
from support import poll

# What uvicorn is told; its own two names, and ours as anything else that is not its own.
LOOPS = {"asyncio": "asyncio", "uvloop": "uvloop", "zcloop": "zcloop:new_event_loop"}
http = pytest.mark.parametrize("http", ["h11", "httptools"])


ENDED = (0, -signal.SIGTERM)        # uvicorn ends by the signal that it has handled


class Program:
    def __init__(self, process, url):
        self.process, self.url = process, url

    async def line(self, expected):
        """Read the output up to that line."""
        seen = []
        while seen[-1:] != [f"{expected}\n"]:
            seen.append((await self.process.stdout.readline()).decode())
            assert seen[-1], f"the program ended without {expected!r}:\n" + "".join(seen)

    async def end(self):
        """SIGTERM, and the output until the end."""
        self.process.send_signal(signal.SIGTERM)
        output = await self.process.stdout.read()
        assert await self.process.wait() in ENDED
        return output.decode().split("\n")[:-1]


@contextlib.asynccontextmanager
async def program(loop_factory, *options):
    """`python -m uvicorn` with the loop of the test; killed at exit if it has not ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "uvicorn", "asgi_app:app",
        "--app-dir", str(Path(__file__).parent), "--port", "0", "--loop", LOOPS[loop_factory.name],
        *options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=child_environment(loop_factory))
    try:
        output = []
        while True:
            line = (await process.stdout.readline()).decode()
            assert line, "uvicorn ended:\n" + "".join(output)
            output.append(line)
            if found := re.search(r"running on (https?://\S+)", line):
                break
        assert "startup\n" in output
        yield Program(process, found[1])
    finally:
        if process.returncode is None:
            process.kill()
            await process.stdout.read()
            await process.wait()


async def exercise(url, name, **client_options):
    """Everything but the end."""
    async with httpx.AsyncClient(**client_options) as client:
        answer = (await client.get(url)).json()
        assert answer == {"loop": name, "scheme": url.partition(":")[0], "http": "1.1"}
        source = Source(24 * 1024 * 1024)
        answer = (await client.post(f"{url}/upload", content=source.__aiter__())).json()
        assert answer == {"digest": source.hexdigest(), "received": source.total}
        sink = hashlib.blake2b()
        async with client.stream("GET", f"{url}/stream", params={"chunks": 300}) as response:
            assert response.headers["Transfer-Encoding"] == "chunked"
            async for chunk in response.aiter_bytes():
                sink.update(chunk)
        assert sink.hexdigest() == hashlib.blake2b(asgi_app.CHUNK * 300).hexdigest()
        answers = await asyncio.gather(*(client.get(url) for _ in range(50)))
        assert {answer.status_code for answer in answers} == {200}
    async with websockets.connect(f"ws{url.removeprefix('http')}/ws", proxy=None,
                                  ssl=client_options.get("verify") or None) as ws:
        for data in b"", b"abc", os.urandom(500_000):
            await ws.send(data)
            assert await ws.recv() == data[::-1]


@http
async def test_command_line(loop_factory, http):
    async with program(loop_factory, "--http", http, "--ws", "websockets-sansio") as server:
        await exercise(server.url, loop_factory.name)
        output = await server.end()
    assert "shutdown" in output
    assert not [line for line in output if "Error" in line or "Traceback" in line]


@http
async def test_sigterm_lets_a_request_end(loop_factory, http):
    """The second half of its body is sent when the server has said that it shuts down."""
    go_on = asyncio.Event()

    async def halves():
        yield b"first "
        await go_on.wait()
        yield b"second"

    async with program(loop_factory, "--http", http) as server:
        async with httpx.AsyncClient(timeout=None) as client:
            assert (await client.get(server.url)).status_code == 200    # a connection that is kept
            request = asyncio.ensure_future(client.post(
                f"{server.url}/upload?announce", content=halves()))
            await server.line("entered")
            server.process.send_signal(signal.SIGTERM)
            await server.line("INFO:     Shutting down")
            go_on.set()
            assert (await request).json() == {
                "digest": hashlib.blake2b(b"first second").hexdigest(), "received": 12}
            await server.line("shutdown")
            assert await server.process.wait() in ENDED
            with pytest.raises(httpx.ConnectError):
                await client.get(server.url)


@contextlib.asynccontextmanager
async def inside(**options):
    """uvicorn's server in a task of the running loop."""
    server = uvicorn.Server(uvicorn.Config(asgi_app.app, port=0, log_config=None, **options))
    # serve() would take the process's signals.
    server.capture_signals = contextlib.nullcontext
    serving = asyncio.ensure_future(server.serve())
    await poll(lambda: server.started or serving.done())
    host, port = server.servers[0].sockets[0].getsockname()
    yield f"{'https' if options.get('ssl_certfile') else 'http'}://{host}:{port}"
    server.should_exit = True
    await serving


@http
async def test_inside_a_running_loop(loop_factory, http, capsys):
    async with inside(http=http, ws="websockets-sansio") as url:
        await exercise(url, loop_factory.name)
    assert capsys.readouterr().out == "startup\nshutdown\n"


async def test_over_tls(loop_factory, authority, client_tls, tmp_path):
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    async with inside(ws="websockets-sansio", ssl_keyfile=tmp_path / "key",
                      ssl_certfile=tmp_path / "cert") as url:
        assert url.startswith("https")
        await exercise(url, loop_factory.name, verify=client_tls)
