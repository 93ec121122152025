"""The benchmarks of aiohttp: their client notices what is wrong, and each case can be run."""
import contextlib
import hashlib
import json
import socket
import subprocess

import pytest

pytest.importorskip("rich", reason="the tables need rich, of the extra 'bench'")
pytest.importorskip("aiohttp", reason="the servers need aiohttp, of the extra 'bench'")

from benchmarks import build, results, sample
from benchmarks.aiohttp import cli
from benchmarks.aiohttp.cases import SIDES, TARGETS, all_cases
from benchmarks.servers.pattern import pattern

CASES = {case.id: case for case in all_cases()}


def run(handler, *arguments):
    """Runs the load generator against `handler(connection)` in this process; its record."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [str(build.loadgen()), *arguments, "--port", port]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(ConnectionError, EOFError):
                handler(connection)
            output, _ = process.communicate()
    return json.loads(output)


def receive_head(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            raise EOFError
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def answering(body, status=b"200 OK", width=1 << 20):
    """A server that takes any request with a body, and sends that answer in pieces."""
    response = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)

    def handler(connection):
        while True:
            head, rest = receive_head(connection)
            left = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0] or 0) - len(rest)
            while left > 0:
                left -= len(connection.recv(min(left, 1 << 20)))
            for start in range(0, len(response), width):
                connection.sendall(response[start:start + width])
    return handler


HTTP = ("http", "--count", "3", "--warmup", "0")


@pytest.mark.parametrize("width", [1, 7, 1 << 20])
def test_http_counts_what_is_right(width):
    record = run(answering(b"as expected", width=width), *HTTP, "--expect", "as expected")
    assert (record["units"], record["verified"]) == (3, 3)
    assert record["latency_us"]["p50"] > 0


def test_http_uploads_the_pattern():
    seen = []

    def handler(connection):
        for _ in range(3):
            head, body = receive_head(connection)
            assert head.startswith(b"POST /here HTTP/1.1\r\n")
            while len(body) < 200_000:
                body += connection.recv(1 << 20)
            seen.append(body)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    assert run(handler, *HTTP, "--upload", "200000", "--path", "/here")["units"] == 3
    assert {hashlib.sha256(body).digest() for body in seen} == {
        hashlib.sha256(pattern(200_000)).digest()}


def test_http_downloads():
    record = run(answering(pattern(2_500_000)), *HTTP, "--download", "2500000")
    assert record["bytes"] > 3 * 2_500_000


@pytest.mark.parametrize("answer, arguments, complaint", [
    (answering(b"other text!"), ("--expect", "as expected"), "wrong bytes at offset 0"),
    (answering(b"longer than that"), ("--expect", "as expected"), "a body of 16 bytes"),
    (answering(b"", status=b"500 Error"), (), "HTTP/1.1 500 Error"),
    (answering(pattern(99_999) + b"!"), ("--download", "100000"), "wrong bytes"),
    (lambda c: c.sendall(b"HTTP/1.1 200 OK\r\n\r\n") or receive_head(c), (), "Content-Length"),
    (lambda c: receive_head(c), (), "closed"),
])
def test_http_notices(answer, arguments, complaint):
    assert complaint in run(answer, *HTTP, *arguments)["error"]


def test_priming_requests_come_first():
    """What it does isn't counted, and it is closed before the others open."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [str(build.loadgen()), *HTTP, "--priming", "2", "--connections", "2",
                   "--port",
                   str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            first, _ = listener.accept()
            with first:
                for _ in range(2):
                    receive_head(first)
                    first.sendall(head)
                assert first.recv(1) == b""
            pair = [listener.accept()[0] for _ in range(2)]
            answered = 0
            while waiting := [c for c in pair if c.fileno() >= 0]:
                for connection in waiting:
                    try:
                        receive_head(connection)
                    except EOFError:
                        connection.close()
                    else:
                        connection.sendall(head)
                        answered += 1
            output, _ = process.communicate()
    assert json.loads(output)["verified"] == answered
    assert answered in (3, 4)


def test_websocket_notices_a_wrong_message():
    def handler(connection):
        receive_head(connection)
        connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\n"
                           b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
        left = 14 + 1000 - 6                   # a 16-bit length
        while left > 0:
            left -= len(connection.recv(left))
        connection.sendall(b"\x82\x7e\x03\xe8" + b"?" * 1000)

    record = run(handler, "websocket", "--count", "1", "--warmup", "0", "--size", "1000")
    assert record["error"] == "a message came back wrong at byte 0"


@pytest.mark.parametrize("id", CASES)
def test_each_case_runs(id, tmp_path, monkeypatch, capsys):
    """With small sizes, and prints its figures; the machine may be slow."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(sample, "LATE_SECONDS", float("inf"))
    monkeypatch.setattr(cli, "all_cases", lambda: all_cases(64))
    sides = CASES[id].sides if id.endswith("none") else CASES[id].sides[:2]
    assert cli.main(["--only", id, "--sides", ",".join(sides), "--rounds", "1", "--seconds",
                     "0.05", "--warmup", "0.01"]) == 0
    shown = capsys.readouterr().out
    assert "failed" not in shown
    (stored,) = tmp_path.glob("*.json")
    (case,) = json.loads(stored.read_text())["cases"]
    assert {side: len(samples) for side, samples in case["samples"].items()} == dict.fromkeys(
        sides, 1)


def test_targets_name_cases_and_sides():
    assert all(target.case in CASES and target.side in CASES[target.case].sides
               for target in TARGETS)
    assert {side for case in CASES.values() for side in case.sides} <= SIDES.keys()


def test_unknown_sides_are_refused(capsys):
    assert cli.main(["--sides", "uvloop,nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().out
