"""gunicorn with uvicorn's worker as docs/from-uvloop.md has it: the loop in each of its processes,
also with the application loaded before the fork, and the graceful end."""
import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path

import gunicorn_workers
import httpx
import pytest
from http_tools import child_environment

FOLDER = Path(__file__).parent
WORKERS = 2


def test_the_worker_is_the_documented_one():
    code = Path(gunicorn_workers.__file__).read_text().partition("\n")[2]
    indented = "".join(f"    {line}" if line.strip() else line for line in code.splitlines(True))
    assert indented in (FOLDER.parents[1] / "docs/from-uvloop.md").read_text()


@pytest.mark.loops("zcloop")
@pytest.mark.parametrize("options", [(), ("--preload",)])
async def test_gunicorn(loop_factory, options, tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "gunicorn", "--bind", "127.0.0.1:0",
        "--workers", str(WORKERS), "-k", "gunicorn_workers.ZcloopWorker", *options,
        "--chdir", str(FOLDER), "asgi_app:app", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=child_environment(loop_factory) | {"HOME": str(tmp_path)})  # for its control socket
    output = ""
    try:
        while output.count("startup complete") < WORKERS:
            line = (await process.stdout.readline()).decode()
            assert line, f"gunicorn ended:\n{output}"
            output += line
        [url] = re.findall(r"Listening at: (http://\S+)", output)
        async with httpx.AsyncClient() as client:
            for _ in range(20):
                assert (await client.get(url)).json()["loop"] == "zcloop"
            answer = await client.post(f"{url}/upload", content=bytes(3_000_000))
            assert answer.json()["received"] == 3_000_000
        process.send_signal(signal.SIGTERM)
        output += (await process.stdout.read()).decode()
        assert await process.wait() == 0, output
        assert output.count("shutdown\n") == WORKERS
        assert "Traceback" not in output
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
