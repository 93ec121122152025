"""The demo's application, without a browser and on every loop: files arrive and leave unchanged,
what can't be done is refused in words and leaves nothing behind, other sites' pages and tricks
with paths get nowhere, and figures are given where they mean something."""
import asyncio
import errno
import json

import aiohttp
import pytest
from demo_client import MIB, noise, sha256, site
from support import link, poll, settle

from zcloop.demo import body, storage
from zcloop.demo.meter import LEAST_BYTES, Meter, _ways
from zcloop.stats import ConnStats

DATA = noise(5 * MIB + 12345)


async def test_a_file_comes_back_both_ways(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at:
        file = (await at.upload(DATA, "a file.bin"))["file"]
        assert (file["name"], file["size"]) == ("a file.bin", len(DATA))
        for way in ("files", "static"):
            async with at.request("GET", f"/{way}/{file['id']}") as response:
                assert response.headers["Content-Type"] == "application/octet-stream"
                disposition = response.headers["Content-Disposition"]
                assert disposition.startswith('attachment; filename="a file.bin"')
                assert sha256(await response.read()) == sha256(DATA)
        digests = await at.json("GET", f"/api/files/{file['id']}/digests")
        piece = digests["piece_bytes"]
        assert digests["sha256"] == sha256(DATA)
        assert digests["pieces"] == [sha256(DATA[i:i + piece]) for i in range(0, len(DATA), piece)]


async def test_a_body_of_unknown_length(loop_factory, tmp_path):
    async def pieces():
        for start in range(0, len(DATA), 100_000):
            yield DATA[start:start + 100_000]

    async with site(tmp_path, loop_factory.name) as at:
        file = (await at.upload(pieces()))["file"]
        assert (tmp_path / f"{file['id']}.data").read_bytes() == DATA


async def test_an_empty_file(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at:
        file = (await at.upload(b""))["file"]
        for way in ("files", "static"):
            async with at.request("GET", f"/{way}/{file['id']}") as response:
                assert (response.status, await response.read()) == (200, b"")


async def test_head_sends_no_body_and_a_range_sends_its_part(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at:
        file = (await at.upload(DATA))["file"]
        for way in ("files", "static"):
            async with at.request("HEAD", f"/{way}/{file['id']}") as response:
                assert response.headers["Content-Length"] == str(len(DATA))
        async with at.request("GET", f"/static/{file['id']}",
                              headers={"Range": "bytes=1000-1999"}) as response:
            assert (response.status, await response.read()) == (206, DATA[1000:2000])
        assert (await at.json("GET", "/api/state"))["results"] == []


async def test_what_is_deleted_is_gone(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at:
        file = (await at.upload(DATA))["file"]
        async with at.request("DELETE", f"/api/files/{file['id']}") as response:
            assert response.status == 204
        assert list(tmp_path.iterdir()) == []
        assert (await at.json("GET", "/api/state"))["files"] == []
        assert "Not Found" in (await at.json("GET", f"/files/{file['id']}", 404))["error"]


async def test_a_later_worker_finds_whole_files_and_removes_parts(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at:
        file = (await at.upload(DATA, "kept"))["file"]
    (tmp_path / "0123456789abcdef.data").write_bytes(b"part")
    async with site(tmp_path, loop_factory.name) as at:
        assert (await at.json("GET", "/api/state"))["files"] == [file]
        assert at.stored() == [f"{file['id']}.data"]


# -- refusals ---------------------------------------------------------------------


async def test_too_large_by_its_length(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name, max_size=MIB) as at:
        answer = await at.upload(noise(MIB + 1), status=413)
        assert "too large" in answer["error"] and str(MIB) in answer["error"]
        assert at.stored() == []
        await at.upload(noise(MIB))


async def test_too_large_without_a_length(loop_factory, tmp_path):
    async def endless():
        while True:
            yield noise(65536)

    async with site(tmp_path, loop_factory.name, max_size=MIB) as at:
        # The answer, or the connection's end: the server doesn't read for ever.
        try:
            await at.upload(endless(), status=413)
        except (aiohttp.ClientError, OSError):
            pass
        await poll(lambda: at.stored() == [])
        await at.upload(noise(MIB))


async def test_the_folder_as_a_whole_is_limited(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name, max_size=MIB) as at:
        for _ in range(4):
            await at.upload(noise(MIB))
        answer = await at.upload(noise(MIB), status=507)
        assert "Delete files" in answer["error"]


async def test_the_disk_is_nearly_full(loop_factory, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "RESERVE", 1 << 62)
    async with site(tmp_path, loop_factory.name) as at:
        assert (await at.upload(DATA, status=507))["error"] == "The server's disk is full."
        assert at.stored() == []


@pytest.mark.parametrize(("error", "status", "words"), [
    (OSError(errno.ENOSPC, "No space left on device"), 507, "The server's disk is full."),
    (OSError(errno.EIO, "Input/output error"), 500,
     "The server can't store the file: Input/output error."),
])
async def test_a_write_fails(loop_factory, tmp_path, monkeypatch, error, status, words):
    def fail(file, batch):
        raise error

    async with site(tmp_path, loop_factory.name) as at:
        with monkeypatch.context() as patch:
            patch.setattr(body, "_write", fail)
            assert (await at.upload(DATA, status=status))["error"] == words
            assert at.stored() == []
        await at.upload(DATA)


async def test_short_writes_are_completed(loop_factory, tmp_path, monkeypatch):
    real = body.os.writev
    monkeypatch.setattr(body.os, "writev", lambda fd, parts: real(
        fd, [bytes(parts[0])[:max(1, len(parts[0]) // 2)]]))
    async with site(tmp_path, loop_factory.name) as at:
        file = (await at.upload(DATA))["file"]
        assert (tmp_path / f"{file['id']}.data").read_bytes() == DATA


async def test_a_client_that_goes_away_leaves_nothing(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at:
        host, port = at.base.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PUT /api/files?name=x HTTP/1.1\r\nHost: localhost\r\n"
                     b"Content-Length: 10000000\r\n\r\n" + DATA)
        await poll(lambda: len(at.stored()) == 1)
        writer.close()
        await writer.wait_closed()
        await poll(lambda: at.stored() == [])
        await at.upload(DATA)


# -- other sites, and tricks ----------------------------------------------------------


@pytest.mark.parametrize("headers", [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Host": "evil.example"},
    {"Host": "evil.example:80", "Origin": "http://evil.example:80"},
    {"Host": "[half"},
])
async def test_requests_of_other_sites_are_refused(loop_factory, tmp_path, headers):
    async with site(tmp_path, loop_factory.name) as at:
        await at.upload(DATA, status=403, headers=headers)
        await at.json("POST", "/api/loop", 403, data='{"loop": "uvloop"}', headers=headers)
        assert (at.stored(), at.switched) == ([], [])


async def test_a_name_that_was_pointed_here_reads_nothing(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at:
        await at.json("GET", "/api/state", 403, headers={"Host": "evil.example"})


async def test_our_own_page_may(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name, host="demo.example") as at:
        for host in (at.base.removeprefix("http://"), "localhost:1", "demo.example", "[::1]:2"):
            await at.upload(b"x", headers={"Host": host, "Origin": f"http://{host}",
                                           "Sec-Fetch-Site": "same-origin"})


@pytest.mark.parametrize("path", [
    "/static/../../etc/passwd", "/static/..%2f..%2fetc%2fpasswd", "/files/%2e%2e",
    "/../options.py", "/%2e%2e/options.py", "/style.css/..", "/files/results", "/static/",
    "//etc/passwd",
])
async def test_paths_lead_only_to_what_has_an_id(loop_factory, tmp_path, path):
    async with site(tmp_path, loop_factory.name) as at:
        host, port = at.base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\n".encode()
                     + b"Host: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")), answer[:200]


@pytest.mark.parametrize(("given", "kept"), [
    ("../../etc/passwd", "passwd"), ("C:\\temp\\x.txt", "x.txt"), ("", "unnamed"),
    ("..", "unnamed"), (".profile", "profile"), ("a\r\nSet-Cookie: b", "aSet-Cookie: b"),
    ("ж" * 300, "ж" * 100),
    ("\ud800", "unnamed"),
])
def test_names_are_only_names(given, kept):
    assert storage.clean_name(given) == kept


async def test_any_name_can_be_a_header(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at:
        file = (await at.upload(b"x", '"; ж\r\nX-Evil: 1'))["file"]
        async with at.request("GET", f"/files/{file['id']}") as response:
            assert "X-Evil" not in response.headers
            assert response.headers["Content-Disposition"].count('"') == 2


async def test_the_page_and_its_headers(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at:
        kinds = {"/": "text/html", "/main.js": "text/javascript", "/style.css": "text/css",
                 "/icon.svg": "image/svg+xml"}
        for path, kind in kinds.items():
            async with at.request("GET", path) as response:
                assert response.status == 200
                assert response.content_type == kind
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert b"http://" not in (await response.read()).replace(b"http://www.w3.org", b"")


# -- figures -----------------------------------------------------------------------


async def test_figures_of_each_kind_of_transfer(loop_factory, tmp_path):
    data = noise(LEAST_BYTES)
    async with site(tmp_path, loop_factory.name) as at:
        for _ in range(2):      # the later figures replace the earlier
            answer = await at.upload(data)
        for way in ("files", "static"):
            for query in ("", "?measure=no"):
                async with at.request("GET", f"/{way}/{answer['file']['id']}{query}") as response:
                    await response.read()
        results = (await at.json("GET", "/api/state"))["results"]
    assert [one["kind"] for one in results] == ["upload", "download", "static"]
    assert results[0] == answer["figures"]
    for one in results:
        assert (one["loop"], one["bytes"]) == (loop_factory.name, len(data))
        assert one["seconds"] > 0 and one["cpu_per_gib"] > 0 and one["wakeups_per_mb"] >= 0
        assert one["mb_per_s"] == pytest.approx(len(data) / 1e6 / one["seconds"])


async def test_a_small_transfer_has_no_figures(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at:
        assert (await at.upload(noise(LEAST_BYTES - 1)))["figures"] is None
        assert (await at.json("GET", "/api/state"))["results"] == []


async def held(size, release):
    """A body whose second half waits."""
    yield noise(size // 2)
    await release.wait()
    yield noise(size // 2)


async def test_transfers_that_overlap_have_no_figures(loop_factory, tmp_path):
    release = asyncio.Event()
    async with site(tmp_path, loop_factory.name) as at:
        first = asyncio.create_task(at.upload(held(2 * LEAST_BYTES, release)))
        await poll(lambda: len(at.stored()) == 1)
        assert (await at.upload(noise(LEAST_BYTES)))["figures"] is None
        release.set()
        assert (await first)["figures"] is None


async def events(response):
    """(name, content) of each server-sent event."""
    name = None
    async for line in response.content:
        key, _, value = line.decode().strip().partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


async def test_events_tell_what_moves(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at, at.request("GET", "/api/events") as stream:
        told = events(stream)
        name, hello = await anext(told)
        assert name == "hello"
        assert hello["loop"] == loop_factory.name and hello["generation"] == 1
        name, quiet = await anext(told)
        assert name == "sample"
        assert quiet["in_per_s"] == quiet["out_per_s"] == quiet["transfers"] == 0
        assert quiet["cpu_ms_per_mb"] is None and quiet["connections"] >= 1
        file = (await at.upload(DATA))["file"]
        async with at.request("GET", f"/static/{file['id']}") as response:
            await response.read()
        received = sent = 0
        while received < len(DATA) / 2 or sent < len(DATA) / 2:
            _, sample = await anext(told)
            received += sample["in_per_s"] * sample["seconds"]
            sent += sample["out_per_s"] * sample["seconds"]
            if sample["in_per_s"] + sample["out_per_s"] > 2e6 / sample["seconds"]:
                assert sample["cpu_ms_per_mb"] > 0 and sample["wakeups_per_mb"] >= 0
        ways = sample["ways"]
        if loop_factory.name == "zcloop":
            assert ways["filled"] + ways["in_copied"] >= len(DATA) / 2
            assert ways["sendfile"] + ways["out_copied"] >= len(DATA) / 2
        else:
            assert ways is None
        await told.aclose()


def test_ways_are_those_that_this_version_counts():
    class Later:
        bytes_received, bytes_filled, bytes_mapped = 100, 30, 50
        bytes_sent, sendfile_bytes, zerocopy_bytes = 10, 1, 2

    assert _ways(Later()) == {"filled": 30, "mapped": 50, "in_copied": 20, "sendfile": 1,
                              "zerocopy": 2, "out_copied": 7}
    now = _ways(ConnStats(bytes_received=10, bytes_filled=4, bytes_sent=5))
    assert (now["filled"], now["in_copied"], now["sendfile"], now["out_copied"]) == (4, 6, 0, 5)


# -- the switch ---------------------------------------------------------------------


async def test_a_switch_is_asked_of_the_parent(loop_factory, tmp_path):
    async with site(tmp_path, loop_factory.name) as at:
        answer = await at.json("POST", "/api/loop", 202, data='{"loop": "uvloop"}')
        assert answer == {"loop": "uvloop", "generation": 1}
        assert at.switched == ["uvloop"]


async def test_a_transfer_ends_when_its_connection_is_gone(loop_factory):
    """A closed connection can't be asked how much it moved, on each loop in another way."""
    meter = Meter(loop_factory.name)
    async with link("tcp-server") as (transport, protocol, _):
        transfer = meter.begin("download", transport)
        assert not meter.idle.is_set()
        transport.abort()
        await protocol.called("connection_lost")
        await settle()
        meter.sample(0)
        assert meter.end(transfer, LEAST_BYTES) is not None
        assert meter.idle.is_set() and not meter.under_way


@pytest.mark.parametrize("asked", ['{"loop": "trio"}', "{}", "[]", "not json", ""])
async def test_there_are_three_loops(loop_factory, tmp_path, asked):
    async with site(tmp_path, loop_factory.name) as at:
        answer = await at.json("POST", "/api/loop", 400, data=asked)
        assert "asyncio, uvloop, zcloop" in answer["error"]
        assert at.switched == []


async def test_no_switch_while_something_moves(loop_factory, tmp_path):
    release = asyncio.Event()
    async with site(tmp_path, loop_factory.name) as at:
        transfer = asyncio.create_task(at.upload(held(2 * MIB, release)))
        await poll(lambda: len(at.stored()) == 1)
        answer = await at.json("POST", "/api/loop", 409, data='{"loop": "uvloop"}')
        assert "when it has ended" in answer["error"]
        assert at.switched == []
        release.set()
        await transfer
