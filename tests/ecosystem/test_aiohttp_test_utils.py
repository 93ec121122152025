"""aiohttp's own tools for tests, on every loop: TestClient and TestServer, AioHTTPTestCase, and
pytest-aiohttp. How each is told the loop is what this file documents."""
import asyncio
import io
import subprocess
import sys
import unittest

import pytest
from aiohttp import web
from aiohttp.test_utils import AioHTTPTestCase, RawTestServer, TestClient, TestServer
from http_tools import LOOP_FACTORIES, child_environment


def make_app():
    async def hello(request):
        return web.Response(text=f"Hello {request.query.get('name', 'nobody')}")

    async def websocket(request):
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        async for message in ws:
            await ws.send_str(message.data.upper())
        return ws

    app = web.Application()
    app.router.add_get("/", hello)
    app.router.add_get("/ws", websocket)
    return app


async def test_client_and_server(loop_factory):
    """They run on the loop that runs, whatever it is."""
    async with TestClient(TestServer(make_app())) as client:
        async with client.get("/", params={"name": "zcloop"}) as response:
            assert await response.text() == "Hello zcloop"
        async with client.ws_connect("/ws") as ws:
            await ws.send_str("loud")
            assert await ws.receive_str() == "LOUD"


async def test_raw_server():
    async def handler(request):
        return web.Response(text=request.path)

    async with TestClient(RawTestServer(handler)) as client:
        async with client.get("/any/path") as response:
            assert await response.text() == "/any/path"


def test_case(loop_factory):
    """AioHTTPTestCase is an IsolatedAsyncioTestCase. From Python 3.13 on that takes a
    `loop_factory`; before, its runner is made where the test case can make another."""
    loops = []

    class Case(AioHTTPTestCase):
        async def get_application(self):
            return make_app()

        def _setupAsyncioRunner(self):
            self._asyncioRunner = asyncio.Runner(
                debug=loop_factory.debug, loop_factory=loop_factory)

        async def test_hello(self):
            loops.append(type(asyncio.get_running_loop()))
            async with self.client.get("/") as response:
                self.assertEqual(await response.text(), "Hello nobody")

        async def test_missing(self):
            async with self.client.get("/missing") as response:
                self.assertEqual(response.status, 404)

    if sys.version_info >= (3, 13):
        del Case._setupAsyncioRunner
        Case.loop_factory = staticmethod(loop_factory)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Case)
    output = io.StringIO()
    result = unittest.TextTestRunner(output).run(suite)
    assert result.wasSuccessful() and result.testsRun == 2, output.getvalue()
    expected = asyncio.SelectorEventLoop if loop_factory.name == "asyncio" else None
    assert loops == [expected or type_of(loop_factory)]


def type_of(loop_factory):
    loop = loop_factory()
    loop.close()
    return type(loop)


CONFTEST = """
import {module}

def pytest_asyncio_loop_factories(config, item):
    return {{"{module}": {module}.{name}}}
"""

TESTS = """
import asyncio
import pytest
from aiohttp import web

async def hello(request):
    return web.Response(text=type(asyncio.get_running_loop()).__module__.partition(".")[0])

@pytest.fixture
async def client(aiohttp_client):
    app = web.Application()
    app.router.add_get("/", hello)
    return await aiohttp_client(app)

async def test_hello(client):
    async with client.get("/") as response:
        assert await response.text() == "{module}"

async def test_server(aiohttp_server):
    app = web.Application()
    app.router.add_get("/", hello)
    server = await aiohttp_server(app)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"GET / HTTP/1.0\\r\\n\\r\\n")
    assert (await reader.read()).endswith(b"\\r\\n\\r\\n{module}")
    writer.close()
    await writer.wait_closed()
"""


def test_pytest_aiohttp(loop_factory, tmp_path):
    """pytest-aiohttp's fixtures run on pytest-asyncio's loop, which a hook of the conftest makes
    (pytest-asyncio 1.4 and newer); nothing else is needed."""
    module, _, name = LOOP_FACTORIES[loop_factory.name].partition(":")
    (tmp_path / "conftest.py").write_text(CONFTEST.format(module=module, name=name))
    (tmp_path / "test_example.py").write_text(TESTS.format(module=module))
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nfilterwarnings = error\n"
                                         "asyncio_default_fixture_loop_scope = function\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, env=child_environment(loop_factory), capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout, run.stdout


@pytest.mark.loops("zcloop")
async def test_the_test_can_tell(loop_factory):
    assert type(asyncio.get_running_loop()).__module__.partition(".")[0] == "zcloop"
