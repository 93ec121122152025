"""Static files: aiohttp hands them to the loop's sendfile, and on zcloop they leave through
sendfile(2), which the connection's own counter proves; uvloop has none, and aiohttp reads and
writes there instead. Ranges, conditions, HEAD, TLS and compressed siblings give the same answers
on every loop."""
import asyncio
import contextlib
import email.utils
import gzip
import os

import pytest
from aiohttp import web
from http_tools import Sink, digest, raw_client, send, served
from support import assert_same, pattern, poll, recv_to_end, settle

SIZE = 3_000_001
DATA = pattern(SIZE)
STAMP = 1_700_000_000


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(DATA)
    os.utime(path, (STAMP, STAMP))
    return path


class CountedFile(web.FileResponse):
    """Notes in `sent` what left through sendfile(2), and in `fallbacks` who did not use sendfile.

    The former comes from the connection's own counter, and is None where the loop is not zcloop.
    """

    def __init__(self, path, sent, fallbacks):
        super().__init__(path)
        self.sent, self.fallbacks = sent, fallbacks

    async def prepare(self, request):
        transport = request.transport
        before = transport.get_extra_info("zcloop")
        result = await super().prepare(request)
        after = transport.get_extra_info("zcloop")
        self.sent.append(after and after.sendfile_bytes - before.sendfile_bytes)
        return result

    async def _sendfile_fallback(self, writer, fobj, offset, count):
        self.fallbacks.append(count)
        return await super()._sendfile_fallback(writer, fobj, offset, count)


@contextlib.asynccontextmanager
async def files(path, client="127.0.0.2", **options):
    """(session, URL of the file, bytes through sendfile(2) for each response of it).

    The client's address is not the server's, since zcloop reads and sends what goes to its own
    host (which costs less there), and knows it by the address. At exit aiohttp must not have read
    and written a file by itself, except on uvloop.
    """
    sent, fallbacks = [], []

    async def handler(request):
        return CountedFile(path, sent, fallbacks)

    async with served(web.get("/file", handler), client=client, **options) as (session, url):
        yield session, f"{url}/file", sent
    loop = asyncio.get_running_loop()
    assert not fallbacks or type(loop).__module__ == "uvloop", type(loop)


def through_sendfile(loop_factory, nbytes):
    return nbytes if loop_factory.name == "zcloop" else None


async def check(sent, expected):
    """The client may have all of a response before its handler has noted that."""
    await poll(lambda: len(sent) >= len(expected))
    assert sent == expected


async def test_whole_file(file, loop_factory):
    async with files(file) as (session, url, sent):
        for _ in range(3):
            async with session.get(url) as response:
                assert response.status == 200
                assert response.headers["Accept-Ranges"] == "bytes"
                assert_same(await response.read(), DATA)
        await check(sent, [through_sendfile(loop_factory, SIZE)] * 3)


async def test_large_file_to_a_slow_client(tmp_path, loop_factory):
    """More than the socket takes: sendfile waits for the client, who gets every byte."""
    size = 64 * 1024 * 1024
    path = tmp_path / "large"
    data = pattern(size)
    path.write_bytes(data)
    async with files(path) as (session, url, sent):
        async with session.get(url) as response:
            await settle()
            assert sent == []
            sink = await Sink().take_all(response.content.iter_any())
        await check(sent, [through_sendfile(loop_factory, size)])
    assert sink.hexdigest() == digest(data)


RANGES = {
    "bytes=0-0": (0, 1), "bytes=1000-1999": (1000, 2000), "bytes=2999999-": (2_999_999, SIZE),
    "bytes=-10": (SIZE - 10, SIZE), "bytes=0-99999999": (0, SIZE),
    "bytes=1234567-": (1_234_567, SIZE),
}


@pytest.mark.parametrize("header", RANGES)
async def test_range(file, loop_factory, header):
    start, end = RANGES[header]
    async with files(file) as (session, url, sent):
        async with session.get(url, headers={"Range": header}) as response:
            assert response.status == 206
            assert response.headers["Content-Range"] == f"bytes {start}-{end - 1}/{SIZE}"
            assert_same(await response.read(), DATA[start:end])
        await check(sent, [through_sendfile(loop_factory, end - start)])


async def test_range_that_does_not_exist(file, loop_factory):
    async with files(file) as (session, url, sent):
        async with session.get(url, headers={"Range": f"bytes={SIZE}-"}) as response:
            assert response.status == 416
            assert response.headers["Content-Range"] == f"bytes */{SIZE}"
        await check(sent, [through_sendfile(loop_factory, 0)])


@pytest.mark.parametrize("if_range, status", [(STAMP, 206), (STAMP - 60, 200)])
async def test_if_range(file, if_range, status):
    async with files(file) as (session, url, _):
        headers = {"Range": "bytes=5-9", "If-Range": email.utils.formatdate(if_range, usegmt=True)}
        async with session.get(url, headers=headers) as response:
            assert response.status == status
            assert_same(await response.read(), DATA[5:10] if status == 206 else DATA)


async def test_not_modified(file, loop_factory):
    async with files(file) as (session, url, sent):
        async with session.get(url) as response:
            await response.read()
            etag, modified = response.headers["ETag"], response.headers["Last-Modified"]
        assert modified == email.utils.formatdate(STAMP, usegmt=True)
        for headers in {"If-Modified-Since": modified}, {"If-None-Match": etag}:
            async with session.get(url, headers=headers) as response:
                assert (response.status, await response.read()) == (304, b"")
        nothing = through_sendfile(loop_factory, 0)
        await check(sent, [through_sendfile(loop_factory, SIZE), nothing, nothing])


async def test_precondition_failed(file):
    async with files(file) as (session, url, _):
        headers = {"If-Unmodified-Since": email.utils.formatdate(STAMP - 60, usegmt=True)}
        async with session.get(url, headers=headers) as response:
            assert response.status == 412


async def test_head(file, loop_factory):
    async with files(file) as (session, url, sent):
        async with session.head(url) as response:
            assert (response.status, response.headers["Content-Length"]) == (200, str(SIZE))
            assert await response.read() == b""
        await check(sent, [through_sendfile(loop_factory, 0)])


async def test_empty_file(tmp_path):
    path = tmp_path / "empty"
    path.write_bytes(b"")
    async with files(path) as (session, url, _):
        for _ in range(2):
            async with session.get(url) as response:
                assert (response.status, await response.read()) == (200, b"")


async def test_pipelined_files_and_keep_alive(file, loop_factory):
    """sendfile keeps its place among ordinary writes: head, file, head, range, head, file."""
    async with files(file) as (_, url, sent):
        with raw_client(url.removesuffix("/file"), "127.0.0.2") as sock:
            await send(sock, b"GET /file HTTP/1.1\r\nHost: h\r\n\r\n"
                             b"GET /file HTTP/1.1\r\nHost: h\r\nRange: bytes=10-19\r\n\r\n"
                             b"GET /file HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            received = await recv_to_end(sock)
        bodies = []
        for size in SIZE, 10, SIZE:
            _, _, received = received.partition(b"\r\n\r\n")
            bodies.append(received[:size])
            received = received[size:]
        assert received == b""
        for body, expected in zip(bodies, (DATA, DATA[10:20], DATA), strict=True):
            assert_same(body, expected)
        await check(sent, [through_sendfile(loop_factory, n) for n in (SIZE, 10, SIZE)])


async def test_over_tls(file, server_tls, client_tls, loop_factory):
    """There the kernel can't encrypt what it would send: aiohttp gets it read and written."""
    async with files(file, tls=server_tls, client_tls=client_tls) as (session, url, sent):
        async with session.get(url) as response:
            assert_same(await response.read(), DATA)
        async with session.get(url, headers={"Range": "bytes=7-1000006"}) as response:
            assert_same(await response.read(), DATA[7:1_000_007])
        await check(sent, [through_sendfile(loop_factory, 0)] * 2)


async def test_client_leaves_in_mid_file(tmp_path, loop_factory):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(512 * 1024 * 1024)
    ended = asyncio.get_running_loop().create_future()

    async def handler(request):
        try:
            return await web.FileResponse(path).prepare(request)
        except BaseException as exc:
            ended.set_result(exc)
            raise

    async with served(web.get("/", handler)) as (session, url):
        async with session.get(url) as response:
            await response.content.readexactly(1_000_000)
            response.close()
        assert isinstance(await ended, ConnectionError), await ended


async def test_static_route(tmp_path, file, loop_factory):
    (tmp_path / "text.txt").write_text("plain")
    with gzip.open(tmp_path / "text.txt.gz", "wt") as zipped:
        zipped.write("from the compressed sibling")
    async with served(web.static("/files", tmp_path)) as (session, url):
        async with session.get(f"{url}/files/file.bin") as response:
            assert_same(await response.read(), DATA)
        async with session.get(f"{url}/files/text.txt") as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert await response.text() == "from the compressed sibling"
        async with session.get(f"{url}/files/text.txt", headers={
                "Accept-Encoding": "identity"}) as response:
            assert await response.text() == "plain"
        for path, status in ("missing", 404), ("../test", 404), ("", 403):
            async with session.get(f"{url}/files/{path}") as response:
                assert response.status == status


async def test_client_on_the_same_address(file, loop_factory):
    """There zcloop's sendfile reads and sends by itself; aiohttp does not notice."""
    async with files(file, client="127.0.0.1") as (session, url, sent):
        async with session.get(url) as response:
            assert_same(await response.read(), DATA)
        await check(sent, [through_sendfile(loop_factory, 0)])


async def test_many_clients_of_one_file(file, loop_factory):
    async with files(file) as (session, url, sent):
        async def get():
            async with session.get(url) as response:
                return digest(await response.read())
        assert set(await asyncio.gather(*(get() for _ in range(32)))) == {digest(DATA)}
        await check(sent, [through_sendfile(loop_factory, SIZE)] * 32)
