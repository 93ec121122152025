"""read_body_view() maps the pages of a body where the stream has whole ones, and says no less."""
import asyncio
import contextlib
import socket
import threading

import pytest
from aiohttp import web
from contrib_tools import digest, filled, head
from support import pattern

import zcloop
from zcloop import mapping
from zcloop.contrib.aiohttp import read_body_view

PAGE = 4096
SEGMENT = PAGE + 12                     # and the timestamps' bytes
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
BODY = pattern(2000 * PAGE)
can_map = zcloop.capabilities()["tcp_zerocopy_map"]


def exchange(address, body):
    """Sends one request by MSG_ZEROCOPY, so that whole pages arrive; returns the response."""
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        sock.connect(address)
        sock.sendall(head(len(body), "Connection: close", "Expect: 100-continue"))
        assert sock.recv(4096).startswith(b"HTTP/1.1 100")
        left = memoryview(body)
        while left:
            left = left[sock.send(left[:16 * PAGE], MSG_ZEROCOPY):]
            with contextlib.suppress(BlockingIOError):      # completions, which use up memory
                while True:
                    sock.recvmsg(0, 256, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
        response = b""
        while data := sock.recv(4096):
            response += data
        return response.decode()


@pytest.mark.skipif(not can_map, reason=f"pages can't be mapped: {can_map.detail}")
@pytest.mark.loops("zcloop")
@pytest.mark.parametrize("receive", ["map", "copy"])
def test_a_view_of_mapped_pages(receive, monkeypatch, loop_factory):
    """Most of the body was mapped, and the view stays when the connection and the loop are gone."""
    monkeypatch.setattr(mapping, "_routes", mapping._routes.__class__())
    kept, mapped = [], []

    async def handler(request):
        kept.append(await read_body_view(request))
        mapped.append(request.transport.get_extra_info("zcloop").bytes_mapped)
        assert filled(request)
        return web.Response(text=digest(kept[-1]))

    async def main():
        app = web.Application(client_max_size=len(BODY))
        app.router.add_post("/", handler)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        with socket.socket() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
            sock.bind(("127.0.0.1", 0))
            await web.SockSite(runner, sock).start()
            responses = []
            client = threading.Thread(
                target=lambda: responses.append(exchange(sock.getsockname(), BODY)))
            client.start()
            while client.is_alive():
                await asyncio.sleep(0.001)
            client.join()
            await runner.cleanup()
        assert responses[0].endswith(digest(BODY))

    zcloop.run(main(), config=zcloop.Config(receive=receive))
    assert bytes(kept[0]) == BODY
    assert (mapped[0] > len(BODY) // 2) == (receive == "map")
