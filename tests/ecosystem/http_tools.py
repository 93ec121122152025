"""Tools of the HTTP tests: an aiohttp application that is served, a raw client, and hashes."""
import asyncio
import contextlib
import hashlib
import io
import os
import socket
from http.client import HTTPResponse

from aiohttp import ClientSession, TCPConnector, web
from support import pattern

CHUNK = 256 * 1024


def address(name):
    """A socket's IPv4 name as a URL has it."""
    return f"{name[0]}:{name[1]}"


@contextlib.asynccontextmanager
async def serving(app, *, tls=None, path=None, **runner_options):
    """The base URL of `app`, served on the running loop; its runner is cleaned up at exit.

    On a unix path the URL names a host that a connector for that path ignores.
    """
    runner = web.AppRunner(app, access_log=None, **runner_options)
    await runner.setup()
    try:
        if path is None:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        else:
            site = web.UnixSite(runner, path, ssl_context=tls)
        await site.start()
        host = "localhost" if path else address(runner.addresses[0])
        yield f"{'https' if tls else 'http'}://{host}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def served(*routes, tls=None, client_tls=None, client=None, app_options=(), **options):
    """(session, base URL) of an application of those routes, as web.get() and its like make them.

    `client` is the address that the session connects from. The session is closed before the server.
    """
    app = web.Application(**dict(app_options))
    app.add_routes(routes)
    async with serving(app, tls=tls, **options) as url:
        connector = TCPConnector(ssl=client_tls or True, local_addr=client and (client, 0))
        async with ClientSession(connector=connector) as session:
            yield session, url


@contextlib.contextmanager
def raw_client(url, client="127.0.0.1"):
    """A non-blocking socket connected from the address `client` to a plain server at `url`."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), source_address=(client, 0)) as sock:
        sock.setblocking(False)
        yield sock


async def send(sock, data):
    await asyncio.get_running_loop().sock_sendall(sock, data)


def parse_responses(data, methods):
    """[(status, headers, body)] of the responses to requests of those methods, by http.client.

    Asserts that nothing follows them.
    """
    file = io.BytesIO(data)
    file.close = lambda: None

    class Socket:
        @staticmethod
        def makefile(mode):
            return file
    found = []
    for method in methods:
        response = HTTPResponse(Socket, method=method)
        response.begin()
        found.append((response.status, response.headers, response.read()))
    assert file.read() == b""
    return found


def digest(data):
    return hashlib.blake2b(data).hexdigest()


class Source:
    """`total` bytes of a known pattern in chunks; `sent` counts what was taken."""

    def __init__(self, total, chunk=CHUNK):
        self.total, self.chunk, self.sent = total, chunk, 0
        self.hash = hashlib.blake2b()

    def __iter__(self):
        while self.sent < self.total:
            data = pattern(min(self.chunk, self.total - self.sent), self.sent)
            self.hash.update(data)
            self.sent += len(data)
            yield data

    async def __aiter__(self):
        for data in self:
            yield data

    def hexdigest(self):
        assert self.sent == self.total
        return self.hash.hexdigest()


class Sink:
    """What was received, as a count and a hash."""

    def __init__(self):
        self.received, self.hash = 0, hashlib.blake2b()

    def take(self, data):
        self.received += len(data)
        self.hash.update(data)

    async def take_all(self, chunks):
        async for data in chunks:
            self.take(data)
        return self

    def hexdigest(self):
        return self.hash.hexdigest()


# How a program is told which loop it is to make.
LOOP_FACTORIES = {
    "asyncio": "asyncio:SelectorEventLoop",
    "uvloop": "uvloop:new_event_loop",
    "zcloop": "zcloop:new_event_loop",
}


def child_environment(loop_factory):
    """The environment of a program that runs in debug mode if this test does."""
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("PYTEST", "PYTHON"))}
    if loop_factory.debug:
        environment["PYTHONASYNCIODEBUG"] = "1"
    return environment
