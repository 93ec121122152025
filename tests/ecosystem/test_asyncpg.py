"""asyncpg against a real PostgreSQL, which a fixture makes in a temporary folder and runs for this
file, without privileges, on the loopback address and a unix socket. Where no PostgreSQL server is
installed (Debian: postgresql) the file is left out."""
import asyncio
import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import asyncpg
import pytest
from support import assert_same, pattern, poll

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
if not PROGRAMS and (found := shutil.which("initdb")):
    PROGRAMS = [Path(found)]
pytestmark = pytest.mark.skipif(
    not PROGRAMS, reason="no PostgreSQL server is installed (Debian: apt install postgresql)")

ROWS = 200_000
COPY_BYTES = 24 * 1024 * 1024


@pytest.fixture(scope="session")
def database():
    """Arguments of asyncpg.connect() by kind of socket."""
    folder = Path(tempfile.mkdtemp(prefix="zcpg"))
    # The server refuses to run as root.
    user = {"user": "nobody"} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "nobody")
    programs = PROGRAMS[-1].parent
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    server = None
    try:
        subprocess.run([programs / "initdb", "-D", folder / "data", "-U", "zcloop", "-A", "trust",
                        "--no-sync", "-E", "UTF8", "--no-locale"],
                       check=True, capture_output=True, cwd=folder, **user)
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", folder / "data", "-p", str(port), "-k", folder,
                 "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"],
                stdout=log, stderr=log, cwd=folder, **user)
        common = {"user": "zcloop", "database": "postgres", "port": port}
        asyncio.run(wait_until_ready({"host": "127.0.0.1", **common}, server, folder / "log"))
        yield {"tcp": {"host": "127.0.0.1", **common}, "unix": {"host": str(folder), **common}}
    finally:
        if server is not None:
            server.terminate()
            server.wait()
        shutil.rmtree(folder)


async def wait_until_ready(arguments, server, log):
    while True:
        assert server.poll() is None, log.read_text()
        try:
            connection = await asyncpg.connect(**arguments)
        except (OSError, asyncpg.CannotConnectNowError):
            await asyncio.sleep(0.05)
        else:
            return await connection.close()


@pytest.fixture(params=["tcp", "unix"])
def arguments(request, database):
    return {**database[request.param], "ssl": False}


@contextlib.asynccontextmanager
async def connected(arguments):
    connection = await asyncpg.connect(**arguments)
    try:
        yield connection
    finally:
        await connection.close()


async def test_large_values(arguments):
    data = pattern(16 * 1024 * 1024)
    async with connected(arguments) as connection:
        size, answer = await connection.fetchrow("SELECT length($1::bytea), $1::bytea", data)
        assert size == len(data)
        assert_same(answer, data)


async def test_many_rows_by_a_cursor(arguments):
    async with connected(arguments) as connection:
        async with connection.transaction():
            total = expected = 0
            async for row in connection.cursor(
                    "SELECT n, repeat('x', n % 100) FROM generate_series(1, $1::int) AS n",
                    20_000, prefetch=500):
                expected += 1
                assert row[0] == expected and len(row[1]) == expected % 100
                total += len(row[1])
        assert expected == 20_000


async def test_copy_both_ways(arguments):
    """In from an asynchronous generator, out to a coroutine; the bytes must be the same."""
    line = b"%d\t" + b"payload " * 14 + b"\n"
    count = COPY_BYTES // len(line)
    sent, received = hashlib.blake2b(), hashlib.blake2b()

    async def source():
        for start in range(0, count, 500):
            chunk = b"".join(line % n for n in range(start, min(start + 500, count)))
            sent.update(chunk)
            yield chunk

    async def sink(data):
        received.update(data)

    async with connected(arguments) as connection:
        await connection.execute("CREATE TEMP TABLE bulk (n int, payload text)")
        assert await connection.copy_to_table("bulk", source=source()) == f"COPY {count}"
        assert await connection.fetchval("SELECT count(*) FROM bulk") == count
        await connection.copy_from_query("SELECT * FROM bulk ORDER BY n", output=sink)
        assert received.hexdigest() == sent.hexdigest()
        await connection.execute("CREATE TEMP TABLE records (n int, half float)")
        records = ((n, n / 2) for n in range(50_000))
        await connection.copy_records_to_table("records", records=records)
        assert await connection.fetchval("SELECT sum(half) FROM records") == sum(
            n / 2 for n in range(50_000))


async def test_listen_and_notify(arguments):
    async with connected(arguments) as listening, connected(arguments) as other:
        heard = []
        await listening.add_listener("channel", lambda *call: heard.append(call[1:]))
        for number in range(100):
            await other.execute("SELECT pg_notify('channel', $1)", str(number))
        await poll(lambda: len(heard) == 100)
        assert heard == [(other.get_server_pid(), "channel", str(n)) for n in range(100)]


async def test_concurrent_queries_of_a_pool(arguments):
    async with asyncpg.create_pool(**arguments, min_size=2, max_size=8) as pool:
        async def one(number):
            async with pool.acquire() as connection, connection.transaction():
                return await connection.fetchval("SELECT $1::int * $1::int", number)
        answers = await asyncio.gather(*(one(number) for number in range(300)))
        assert answers == [number * number for number in range(300)]


async def test_timeout_and_cancellation_leave_the_connection_good(arguments):
    async with connected(arguments) as connection:
        with pytest.raises(asyncio.TimeoutError):
            await connection.execute("SELECT pg_sleep(600)", timeout=0.05)
        task = asyncio.ensure_future(connection.execute("SELECT pg_sleep(600)"))
        async with connected(arguments) as other:
            while await other.fetchval("SELECT state FROM pg_stat_activity WHERE pid = $1",
                                       connection.get_server_pid()) != "active":
                await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await connection.fetchval("SELECT 1") == 1


async def test_server_ends_the_connection(arguments):
    async with connected(arguments) as connection, connected(arguments) as other:
        await other.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
        await poll(connection.is_closed)
        with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
            await connection.fetchval("SELECT 1")
