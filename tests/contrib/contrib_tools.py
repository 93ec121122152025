"""Tools of the contrib tests: an application with one handler, a client that sends raw bytes."""
import asyncio
import contextlib
import hashlib
import re
import socket

from aiohttp import web
from support import pattern

from zcloop.contrib.aiohttp import iter_body, read_body_into, read_body_view

SIZE = 3_000_000
BODY = pattern(SIZE)
ROOM = 4_000_000


async def read_into(request):
    buf = bytearray(ROOM)
    n = await read_body_into(request, buf)
    assert not any(buf[n:n + 100])
    return bytes(buf[:n])


async def read_pieces(request):
    return b"".join([bytes(view) async for view in iter_body(request)])


async def read_view(request):
    view = await read_body_view(request)
    assert view.readonly and view.contiguous and view.format == "B"
    return bytes(view)


READERS = {"into": read_into, "iter": read_pieces, "view": read_view}


def filled(request):
    """Bytes of this connection that went past the parser; None on a loop that isn't ours."""
    stats = request.transport.get_extra_info("zcloop")
    return None if stats is None else stats.bytes_filled


def digest(data):
    return f"{len(data)} {hashlib.sha256(data).hexdigest()}"


@contextlib.asynccontextmanager
async def serving(handler, *, ssl=None, path=None, app_options=(), **options):
    """(host, port) of an application whose every request goes to `handler`."""
    app = web.Application(**{"client_max_size": ROOM, **dict(app_options)})
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app, access_log=None, **{"shutdown_timeout": 1, **options})
    await runner.setup()
    try:
        site = (web.UnixSite(runner, path) if path
                else web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ssl))
        await site.start()
        yield path or runner.addresses[0]
    finally:
        await runner.cleanup()


class Client:
    """One connection; requests are written as bytes, responses read one by one."""

    def __init__(self, sock):
        self.sock = sock
        self.rest = b""

    async def send(self, *parts):
        for part in parts:
            await asyncio.get_running_loop().sock_sendall(self.sock, part)

    async def _more(self):
        data = await asyncio.get_running_loop().sock_recv(self.sock, 1 << 16)
        if not data:
            raise EOFError(self.rest)
        self.rest += data

    async def head(self):
        """(status, headers as text) of the next response; 100 Continue is one."""
        while b"\r\n\r\n" not in self.rest:
            await self._more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        text = head.decode()
        return int(text.split()[1]), text

    async def body(self, n):
        while len(self.rest) < n:
            await self._more()
        body, self.rest = self.rest[:n], self.rest[n:]
        return body

    async def response(self):
        """(status, body as text) of the next response, which has a Content-Length."""
        status, head = await self.head()
        length = re.search(r"^content-length: (\d+)", head, re.I | re.M)
        return status, (await self.body(int(length[1]) if length else 0)).decode()

    async def ended(self):
        """Whether the server closes without sending anything more."""
        try:
            await self._more()
        except (EOFError, ConnectionError):
            return True
        return False


@contextlib.contextmanager
def connected(address):
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as sock:
        sock.connect(address)
        sock.setblocking(False)
        yield Client(sock)


def head(length=None, *headers, method="POST", path="/"):
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return "\r\n".join([*lines, "", ""]).encode()


def post(body, *headers):
    return head(len(body), *headers) + body


def chunked(body, size=100_000):
    parts = [body[i:i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@contextlib.asynccontextmanager
async def link(handler, **options):
    """A client connected to a server with that handler."""
    async with serving(handler, **options) as address:
        with connected(address) as client:
            yield client
