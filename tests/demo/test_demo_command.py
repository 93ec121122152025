"""``python -m zcloop demo`` as a process: one address on three loops in turn, nothing left behind
however it ends, and a sentence with cause and remedy when it can't start."""
import errno
import os
import signal
import socket
import subprocess
import sys

import pytest
from demo_client import MIB, Command, noise, sha256, wait_for

from zcloop.demo import supervisor
from zcloop.demo.options import DEFAULT_PORT, LOOPS, Options, parse_size


def get(demo, path):
    return subprocess.run([sys.executable, "-c", "import sys, urllib.request as u;"
                           "sys.stdout.buffer.write(u.urlopen(sys.argv[1]).read())",
                           demo.base + path], check=True, capture_output=True).stdout


def gone(pid):
    """Whether a process that isn't our child has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def refused(base):
    host, port = base.removeprefix("http://").split(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) != 0


def test_one_address_on_every_loop(tmp_path):
    data = noise(MIB)
    with Command(tmp_path, "--loop", "asyncio") as demo:
        file = demo.json("/api/files?name=x", "PUT", data)["file"]
        for generation, loop in enumerate(LOOPS, 1):
            if generation > 1:
                demo.switch(loop)
            state = demo.json("/api/state")
            assert (state["loop"], state["generation"]) == (loop, generation)
            assert state["files"] == [file]
            assert sha256(get(demo, f"/files/{file['id']}")) == sha256(data)
            assert sha256(get(demo, f"/static/{file['id']}")) == sha256(data)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_removes_the_files(tmp_path, number):
    with Command(tmp_path) as demo:
        demo.json("/api/files?name=x", "PUT", noise(MIB))
        assert len(demo.folders()) == 1
        worker = demo.worker()
        demo.process.send_signal(number)
        assert demo.process.wait() == 0
        assert (demo.folders(), gone(worker), refused(demo.base)) == ([], True, True)
    assert demo.said[2:] == []


def test_an_upload_under_way_does_not_keep_it(tmp_path):
    with Command(tmp_path) as demo:
        host, port = demo.base.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"PUT /api/files?name=x HTTP/1.1\r\nHost: localhost\r\n"
                         b"Content-Length: 1000000\r\n\r\nbegin")
            wait_for(lambda: list(demo.folders()[0].glob("*.data")))
            demo.process.terminate()
            assert demo.process.wait() == 0
        assert demo.folders() == []


def test_ctrl_c_reaches_both_and_ends_both(tmp_path):
    """A terminal sends SIGINT to parent and child; here by hand, to both."""
    with Command(tmp_path) as demo:
        worker = demo.worker()
        os.kill(worker, signal.SIGINT)
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait() == 0
        assert demo.folders() == []
    assert demo.said[2:] == []


def test_a_killed_worker_is_replaced(tmp_path):
    with Command(tmp_path, "--loop", "uvloop") as demo:
        file = demo.json("/api/files?name=x", "PUT", noise(MIB))["file"]
        demo.kill_worker()
        assert "signal 9" in demo.line("starting it again")
        state = demo.json("/api/state")
        assert (state["loop"], state["generation"], state["files"]) == ("uvloop", 2, [file])


def test_a_killed_parent_takes_worker_and_files_along(tmp_path):
    with Command(tmp_path) as demo:
        worker = demo.worker()
        demo.process.kill()
        demo.process.wait()
        wait_for(lambda: gone(worker))
        assert (demo.folders(), refused(demo.base)) == ([], True)


def test_another_address_comes_with_a_warning(tmp_path):
    with Command(tmp_path, "--host", "0.0.0.0") as demo:
        assert demo.base.startswith("http://127.0.0.1:")
    assert any(line.startswith("Warning: anybody who can reach") for line in demo.said)
    with Command(tmp_path) as demo:
        pass
    assert not any("Warning" in line for line in demo.said)


def test_without_a_port_it_finds_one(tmp_path):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", DEFAULT_PORT))
            taken.listen()
        except OSError:
            pass    # somebody else has it, which does as well
        with Command(tmp_path, port=None) as demo:
            assert not demo.base.endswith(f":{DEFAULT_PORT}")
            assert demo.json("/api/state")["generation"] == 1


def failing(tmp_path, *arguments, **environment):
    done = subprocess.run([sys.executable, "-m", "zcloop", "demo", *arguments],
                          env=os.environ | {"TMPDIR": str(tmp_path)} | environment,
                          capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert list(tmp_path.iterdir()) == []
    return done.stderr


def test_a_port_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert failing(tmp_path, "--port", str(port)) == (
            f"zcloop: port {port} is in use; leave --port out to get a free one, "
            "or name another\n")


@pytest.mark.parametrize(("host", "words"), [
    ("no.such.host.invalid", "is no address of a machine"),
    ("192.0.2.1", "is not an address of this machine; use 127.0.0.1"),
])
def test_an_address_that_is_not_ours(tmp_path, host, words):
    assert words in failing(tmp_path, "--host", host)


def test_a_wrong_setting_in_the_environment(tmp_path):
    assert "valid are 'auto', 'copy', 'map'" in failing(tmp_path, ZCLOOP_RECEIVE="nonsense")


def test_no_room_for_the_folder(monkeypatch):
    def full(prefix):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(supervisor.tempfile, "mkdtemp", full)
    with pytest.raises(supervisor.StartError, match=r"No space left on device.*set TMPDIR"):
        supervisor.serve(Options(port=0))


@pytest.mark.parametrize(("text", "size"), [
    ("1", 1), ("10K", 10 << 10), ("1.5G", 3 << 29), ("64MiB", 64 << 20), ("2 tb", 2 << 40),
])
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "1X", "-1", "0", "1e3", "1,5G"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="size"):
        parse_size(text)
