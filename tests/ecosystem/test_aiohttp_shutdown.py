"""The end of an aiohttp server: requests under way are answered, kept connections are closed, new
ones are refused; in one process by its runner, and of a process of its own by SIGTERM."""
import asyncio
import signal
import subprocess
import sys

import pytest
from aiohttp import ClientConnectorError, ClientSession, WSCloseCode, WSMsgType, web
from http_tools import LOOP_FACTORIES, address, child_environment, raw_client, send
from support import poll, recv_exactly, recv_to_end

OK = b"HTTP/1.1 200 OK\r\n"


class Service:
    """A server whose handlers wait at a gate; `cleanup` is not part of leaving it."""

    def __init__(self, shutdown_timeout=60):
        self.entered, self.gate = asyncio.Event(), asyncio.Event()
        self.closed, self.cancelled = [], []
        app = web.Application()
        app.router.add_get("/fast", self.fast)
        app.router.add_get("/slow", self.slow)
        app.router.add_get("/ws", self.websocket)
        app.on_shutdown.append(self.on_shutdown)
        self.sockets = []
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=shutdown_timeout)

    async def start(self):
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://{address(self.runner.addresses[0])}"
        return self

    async def fast(self, request):
        return web.Response(text="fast")

    async def slow(self, request):
        self.entered.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.path)
            raise
        return web.Response(text="slow" * 100_000)

    async def websocket(self, request):
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        self.sockets.append(ws)
        self.entered.set()
        async for _ in ws:
            pass
        return ws

    async def on_shutdown(self, app):
        self.closed.append("on_shutdown")
        for ws in self.sockets:
            await ws.close(code=WSCloseCode.GOING_AWAY, message=b"shutdown")


async def test_request_under_way_is_answered():
    service = await Service().start()
    async with ClientSession() as session:
        request = asyncio.ensure_future(session.get(f"{service.url}/slow"))
        await service.entered.wait()
        ending = asyncio.ensure_future(service.runner.cleanup())
        await poll(lambda: not service.runner.addresses)        # the listener goes first
        with pytest.raises(ClientConnectorError):
            async with ClientSession() as other:
                await other.get(f"{service.url}/fast")
        assert not ending.done()
        service.gate.set()
        async with await request as response:
            assert (response.status, await response.text()) == (200, "slow" * 100_000)
        await ending
    assert service.closed == ["on_shutdown"]
    assert service.cancelled == []


async def test_kept_connections_are_closed():
    service = await Service().start()
    with raw_client(service.url) as idle, raw_client(service.url) as unused:
        await send(idle, b"GET /fast HTTP/1.1\r\nHost: h\r\n\r\n")
        assert await recv_exactly(idle, len(OK)) == OK
        await send(unused, b"GET /fa")          # not even a whole request
        await service.runner.cleanup()
        assert (await recv_to_end(idle)).endswith(b"fast")
        assert not (await recv_to_end(unused)).startswith(OK)


async def test_websockets_are_told():
    service = await Service().start()
    async with ClientSession() as session:
        async with session.ws_connect(f"{service.url}/ws") as ws:
            await service.entered.wait()
            ending = asyncio.ensure_future(service.runner.cleanup())
            message = await ws.receive()
            assert (message.type, message.data) == (WSMsgType.CLOSE, WSCloseCode.GOING_AWAY)
            await ending


async def test_handler_that_does_not_end_is_cancelled():
    service = await Service(shutdown_timeout=0.05).start()
    async with ClientSession() as session:
        request = asyncio.ensure_future(session.get(f"{service.url}/slow"))
        await service.entered.wait()
        await service.runner.cleanup()
        await asyncio.wait([request])
        assert request.exception() is not None
    assert service.cancelled == ["/slow"]


PROGRAM = """
import asyncio, importlib, sys
from aiohttp import web

GATE = web.AppKey("gate", asyncio.Event)

async def slow(request):
    print("entered", flush=True)
    await request.app[GATE].wait()
    return web.Response(text=type(asyncio.get_running_loop()).__module__)

async def open_gate(app):
    app[GATE].set()

async def started(app):
    app[GATE] = asyncio.Event()

def make(path):
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)()

app = web.Application()
app.router.add_get("/", slow)
app.on_startup.append(started)
app.on_shutdown.append(open_gate)
app.on_cleanup.append(lambda app: asyncio.sleep(0, print("cleaned", flush=True)))
web.run_app(app, loop=make(sys.argv[1]), host="127.0.0.1", port=0, access_log=None,
            print=lambda text: print(text.partition(chr(10))[0].split()[3], flush=True))
"""


async def test_run_app_and_sigterm(loop_factory):
    """aiohttp's own runner with loop=: the gate opens at shutdown, and the request is answered."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", PROGRAM, LOOP_FACTORIES[loop_factory.name],
        stdout=subprocess.PIPE, env=child_environment(loop_factory))
    url = (await process.stdout.readline()).decode().strip()
    async with ClientSession() as session:
        request = asyncio.ensure_future(session.get(url))
        assert await process.stdout.readline() == b"entered\n"
        process.send_signal(signal.SIGTERM)
        async with await request as response:
            assert response.status == 200
            loop = await response.text()
    assert loop.partition(".")[0] == loop_factory.name
    assert await process.stdout.read() == b"cleaned\n"
    assert await process.wait() == 0
