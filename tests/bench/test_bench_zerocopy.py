"""The tools of the zero-copy benchmark: two more modes of the load generator, which notice wrong
bytes; the sender in C; the namespaces; and the program on one short sample."""
import json
import subprocess
import sys

import pytest
from test_bench_loadgen import receive, run

from benchmarks import namespaces, results, zerocopy_send
from benchmarks.cases import MIB
from benchmarks.sample import Setting, take
from benchmarks.servers.pattern import PERIOD, pattern
from benchmarks.servers.zerocopy import EVERY, MESSAGE_BYTES

SETTING = Setting(seconds=0.05, warmup=0.01, cpus=None)
CASES = {case.id: case for case in zerocopy_send.CASES}
BULK = str(100_000)


def send_pattern(connection, wrong_at=None):
    piece = bytearray(pattern(PERIOD))
    if wrong_at is not None:
        piece[wrong_at] ^= 1
    while True:
        connection.sendall(piece)


def test_discard_counts_what_it_does_not_look_at():
    record = run(send_pattern, "discard", "--count", str(64 * MIB))
    assert record["bytes"] >= 64 * MIB
    # One piece in 64 is received and looked at.
    assert 0 < record["verified"] < record["bytes"]


def test_discard_looks_at_some():
    record = run(lambda c: send_pattern(c, wrong_at=0), "discard", "--count", str(64 * MIB))
    assert "wrong bytes at offset 0" in record["error"]


def mixed(connection, wrong_answer=None, wrong_bulk=None):
    number = 0
    while True:
        message = bytearray(receive(connection, MESSAGE_BYTES))
        message[20] ^= number == wrong_answer
        connection.sendall(message)
        number += 1
        if number % EVERY == 0:
            piece = bytearray(pattern(int(BULK)))
            piece[-1] ^= number == wrong_bulk
            connection.sendall(piece)


MIXED = ("mixed", "--size", str(MESSAGE_BYTES), "--transfer", BULK, "--period", BULK)


def test_mixed_counts_answers():
    record = run(mixed, *MIXED, "--count", "100")
    assert record["units"] == 100
    assert record["bytes"] >= 100 * MESSAGE_BYTES + 12 * int(BULK)
    assert 0 < record["latency_us"]["p50"] <= record["latency_us"]["p99"]


@pytest.mark.parametrize("given, told", [
    ({"wrong_answer": 11}, "answer 11 came back wrong"),
    ({"wrong_bulk": 16}, "wrong bytes behind answer 16")])
def test_mixed_notices_wrong_bytes(given, told):
    assert told in run(lambda c: mixed(c, **given), *MIXED, "--count", "100")["error"]


@pytest.mark.parametrize("side, zerocopy", [("c-zerocopy", True), ("c-copy", False)])
def test_the_sender_in_c(side, zerocopy):
    case = CASES["bulk/loopback/1m"]
    record = take(case, zerocopy_send.SIDES[side], SETTING)
    assert record["verified"] > 0
    counted = record["server_exit"]["zerocopy"]
    if not zerocopy:
        assert not any(counted.values())
        assert zerocopy_send.counts(record) is None
        return
    assert 0 < counted["notifications"] <= counted["completed"] <= counted["sends"]
    # What was delivered over loopback was copied; the rest ended with the connection.
    assert 0 < counted["copied"] <= counted["completed"]
    assert zerocopy_send.notified([record]) == counted["notifications"] / counted["sends"]


def test_two_namespaces_can_talk():
    if why := namespaces.why_not():
        pytest.skip(why)
    program = ("import socket, sys; s = socket.create_server((sys.argv[1], 0)); "
               "print(s.getsockname()[1], flush=True); s.accept()[0].sendall(b'hello')")
    client = ("import socket, sys; "
              "print(socket.create_connection((sys.argv[1], sys.argv[2])).recv(9).decode())")
    with namespaces.veth() as (here, there):
        server = subprocess.Popen([*here.enter, sys.executable, "-c", program, here.address],
                                  stdout=subprocess.PIPE, text=True)
        with server:
            port = server.stdout.readline().strip()
            done = subprocess.run([*there.enter, sys.executable, "-c", client, here.address, port],
                                  capture_output=True, text=True)
        assert done.stdout == "hello\n", done.stderr
        networks = {subprocess.check_output([*enter, "readlink", "/proc/self/ns/net"])
                    for enter in ((), here.enter, there.enter)}
        assert len(networks) == 3


def test_the_program_on_one_short_sample(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    out = tmp_path / "out.json"
    short = ["--rounds", "1", "--seconds", "0.05", "--warmup", "0.01", "--json", str(out)]
    status = zerocopy_send.main([*short, "--only", "latency", "--sides", "copy,uvloop"])
    assert status == 0
    assert "p99 ×copy" in capsys.readouterr().out
    kept = json.loads(out.read_text())
    assert set(kept["cases"][0]["samples"]) == {"copy", "uvloop"}
    assert len(list((tmp_path / "results").iterdir())) == 1
    assert zerocopy_send.main([*short, "--only", "no/such/case"]) == 2
