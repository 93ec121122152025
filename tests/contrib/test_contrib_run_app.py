"""zcloop.contrib.aiohttp.run_app does what aiohttp.web.run_app does, on a zcloop loop.

Each program is a process of its own, which is told to end as an operator does it.
"""
import contextlib
import inspect
import signal
import socket
import subprocess
import sys

import pytest
from aiohttp import web

import zcloop
from zcloop.contrib.aiohttp import run_app

PROGRAM = """
import asyncio, logging, signal, socket, sys
from aiohttp import web
import zcloop
from zcloop.contrib.aiohttp import run_app

async def name(request):
    loop = asyncio.get_running_loop()
    return web.Response(text=f"{type(loop).__module__} {getattr(loop, 'config', None)}")

async def slow(request):
    print("slow", flush=True)
    await asyncio.sleep(0.3)
    return web.Response(text="finished")

async def cleaned(app):
    print("cleaned up", flush=True)

app = web.Application()
app.router.add_get("/", name)
app.router.add_get("/slow", slow)
app.on_cleanup.append(cleaned)

async def make():
    return app

def started(text):
    print(text.splitlines()[0], flush=True)

sock = socket.socket()
sock.bind(("127.0.0.1", 0))

OPTIONS
print("ended", flush=True)
"""


@contextlib.contextmanager
def program(options):
    source = PROGRAM.replace("OPTIONS", options)
    with subprocess.Popen([sys.executable, "-W", "error", "-u", "-c", source], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("======== Running on "), (line, process.stderr.read())
            yield process, line
        finally:
            process.kill()


def port_of(line):
    return int(line.rstrip(" =\n").rpartition(":")[2])


def get(port, path="/"):
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while data := sock.recv(4096):
            answer += data
    return answer.decode()


RUN = "run_app(MAKE, sock=sock, print=started)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("app", ["app", "make()"])
def test_signals_end_it_in_order(number, app):
    with program(RUN.replace("MAKE", app)) as (process, line):
        assert get(port_of(line)).endswith(f"zcloop.loop {zcloop.Config()}")
        process.send_signal(number)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (0, "cleaned up\nended\n", "")


def test_requests_in_progress_are_finished():
    with program(RUN.replace("MAKE", "app")) as (process, line):
        with socket.create_connection(("127.0.0.1", port_of(line))) as sock:
            sock.sendall(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
            assert process.stdout.readline() == "slow\n"
            process.send_signal(signal.SIGTERM)
            answer = b""
            while data := sock.recv(4096):
                answer += data
        out, err = process.communicate()
    assert answer.endswith(b"finished")
    assert (process.returncode, out, err) == (0, "cleaned up\nended\n", "")


def test_config_access_log_and_reuse_port():
    """Two servers on one port; each with the configuration that it was given."""
    options = ("logging.basicConfig(stream=sys.stdout, level=20, format='log %(message)s');"
               "run_app(app, host='127.0.0.1', port=PORT, reuse_port=True, print=started,"
               " access_log_format='%r %s', config=zcloop.Config(busy_poll='off'))")
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        options = options.replace("PORT", str(port))
        with program(options) as (first, _), program(options) as (second, _):
            assert get(port).endswith(str(zcloop.Config(busy_poll="off")))
            for process in (first, second):
                process.send_signal(signal.SIGTERM)
            outputs = "".join(process.communicate()[0] for process in (first, second))
    assert outputs.count("log GET / HTTP/1.1 200\n") == 1


def test_signals_may_be_left_alone():
    """Then SIGTERM ends the process as it does any other."""
    options = RUN.replace("MAKE", "app").replace("sock=sock", "sock=sock, handle_signals=False")
    with program(options) as (process, _):
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == -signal.SIGTERM


def test_unix_socket(tmp_path):
    path = str(tmp_path / "s")
    with program(f"run_app(app, path={path!r}, print=started)") as (process, line):
        assert path in line
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert sock.recv(12) == b"HTTP/1.1 200"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_every_argument_of_aiohttp_is_passed_on(monkeypatch):
    given = {}
    names = set(inspect.signature(web.run_app).parameters) - {"app", "loop", "kwargs"}
    assert names >= {"host", "port", "sock", "shutdown_timeout", "handle_signals"}
    monkeypatch.setattr(web, "run_app", lambda app, **arguments: given.update(arguments, app=app))
    run_app("app", **dict.fromkeys(names, "x"))
    assert isinstance(given.pop("loop"), zcloop.EventLoop)
    assert given == dict.fromkeys(names, "x") | {"app": "app"}


def test_a_loop_that_is_given_is_used(monkeypatch):
    given = []
    monkeypatch.setattr(web, "run_app", lambda app, *, loop: given.append(loop))
    run_app("app", loop="loop")
    assert given == ["loop"]
    with pytest.raises(TypeError, match="not both"):
        run_app("app", loop="loop", config=zcloop.Config())


def test_the_loop_is_closed_whatever_happens(monkeypatch):
    loops = []

    def fail(app, *, loop):
        loops.append(loop)
        raise LookupError

    monkeypatch.setattr(web, "run_app", fail)
    with pytest.raises(LookupError):
        run_app("app")
    assert loops[0].is_closed()


def test_without_aiohttp():
    """Importing the module is no error; calling something says what is missing."""
    code = ("import sys; sys.modules['aiohttp'] = None; sys.modules['aiohttp.web'] = None\n"
            "from zcloop.contrib.aiohttp import run_app\n"
            "try:\n    run_app(None)\n"
            "except ImportError as exc:\n    print(exc)")
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True,
                          text=True)
    assert (done.stdout, done.stderr) == (
        "zcloop.contrib.aiohttp needs aiohttp 3.10 or newer: pip install aiohttp\n", "")
