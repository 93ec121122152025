"""The load generator notices what is wrong with what it receives, and counts what is right."""
import contextlib
import json
import socket
import struct
import subprocess

import pytest

from benchmarks import build
from benchmarks.servers.pattern import LINE_BYTES, LINES_PER_BLOCK, PATTERN, PERIOD, pattern


def run(handler, *arguments):
    """Runs the load generator against one `handler(connection)` in this process.

    Returns its record; what the handler meets when the other end gives up is not an error here.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [str(build.loadgen()), *arguments, "--port", port]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(ConnectionError):
                handler(connection)
            output, _ = process.communicate()
    record = json.loads(output)
    assert process.returncode == (1 if "error" in record else 0)
    return record


def alone(*arguments):
    """Runs it with nobody to talk to."""
    done = subprocess.run([str(build.loadgen()), *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    return json.loads(done.stdout)["error"]


def receive(connection, nbytes):
    data = b""
    while len(data) < nbytes:
        piece = connection.recv(nbytes - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data


def receive_to_end(connection):
    data = b""
    while piece := connection.recv(1 << 20):
        data += piece
    return data


def echo(connection):
    while data := connection.recv(1 << 20):
        connection.sendall(data)


def test_echo_counts_messages_and_bytes():
    record = run(echo, "echo", "--count", "200", "--size", "64")
    assert (record["units"], record["bytes"]) == (200, 200 * 64)
    assert record["verified"] >= 200
    assert record["seconds"] > 0
    latency = record["latency_us"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p999"]
    assert latency["p999"] <= latency["max"]


def test_warm_up_is_not_counted():
    record = run(echo, "echo", "--warmup", "0.05", "--count", "10")
    assert record["units"] == 10
    assert record["verified"] > 10


@pytest.mark.parametrize("size", [8, 64, 4096, 5000, 32768])
def test_pipelined_messages_in_odd_pieces(size):
    def in_pieces(connection):
        width = 1
        while data := connection.recv(7001):
            while data:
                connection.sendall(data[:width])
                data, width = data[width:], width % 8999 + 611
    record = run(in_pieces, "echo", "--count", "50", "--size", str(size), "--depth", "5")
    assert record["units"] >= 50
    assert record["bytes"] >= (50 - 5) * size


@pytest.mark.parametrize(
    ("size", "at"), [(64, 0), (64, 63), (1024, 500), (4096, 4095), (32768, 3), (32768, 32767)]
)
def test_a_changed_byte_is_noticed(size, at):
    def corrupt(connection):
        for _ in range(3):
            connection.sendall(receive(connection, size))
        message = bytearray(receive(connection, size))
        message[at] ^= 1
        connection.sendall(message)
        echo(connection)
    record = run(corrupt, "echo", "--count", "100", "--size", str(size))
    assert "message 3 came back wrong" in record["error"]


def test_every_64th_large_message_is_compared_whole():
    def corrupt(connection):
        while True:
            message = bytearray(receive(connection, 32768))
            message[9000] ^= 1
            connection.sendall(message)
    record = run(corrupt, "echo", "--count", "1000", "--size", "32768")
    assert "message 0 came back wrong" in record["error"]


def test_an_answer_given_twice_is_noticed():
    def repeat(connection):
        first = receive(connection, 64)
        connection.sendall(first)
        receive(connection, 64)
        connection.sendall(first)
    record = run(repeat, "echo", "--count", "100", "--size", "64")
    assert "message 1 came back wrong" in record["error"]


def test_more_than_was_sent_is_noticed():
    def generous(connection):
        message = receive(connection, 64)
        connection.sendall(message + message)
    record = run(generous, "echo", "--count", "100", "--size", "64")
    # The surplus is taken for the next message when that one is on its way already.
    assert "more came back" in record["error"] or "message 1 came back wrong" in record["error"]


def test_a_server_that_leaves_is_noticed():
    record = run(lambda connection: receive(connection, 64), "echo", "--count", "9", "--size", "64")
    assert "closed it" in record["error"] or "reset" in record["error"]


def test_sink_sends_the_pattern_and_wants_its_count_back():
    streams = []

    def sink(connection):
        streams.append(receive_to_end(connection))
        connection.sendall(struct.pack("<QQ", len(streams[0]), 0))
    record = run(sink, "sink", "--count", "3000000", "--size", "100001")
    assert record["units"] == record["bytes"] >= 3_000_000
    assert streams == [pattern(len(streams[0]))]
    assert len(PATTERN) == PERIOD


@pytest.mark.parametrize(("missing", "wrong"), [(1, 0), (0, 1)])
def test_sink_refuses_a_wrong_answer(missing, wrong):
    def sink(connection):
        received = len(receive_to_end(connection))
        connection.sendall(struct.pack("<QQ", received - missing, wrong))
    record = run(sink, "sink", "--count", "1000")
    assert "pieces out of step" in record["error"]


def test_lines_are_whole_and_numbered():
    streams = []

    def sink(connection):
        streams.append(receive_to_end(connection))
        connection.sendall(struct.pack("<QQ", len(streams[0]), 0))
    record = run(sink, "lines", "--count", "2000", "--size", "33333")
    lines = streams[0].splitlines(keepends=True)
    assert record["units"] >= 2000
    assert {len(line) for line in lines} == {LINE_BYTES}
    numbers = [int(line[:16], 16) for line in lines]
    assert numbers == [i % LINES_PER_BLOCK for i in range(len(lines))]


def test_source_takes_the_pattern():
    piece = pattern(300_000)

    def source(connection):
        while True:
            connection.sendall(piece)
    record = run(source, "source", "--count", "2000000", "--period", "300000")
    assert record["units"] >= 2_000_000


def test_source_notices_a_lost_byte():
    piece = pattern(300_000)

    def source(connection):
        connection.sendall(piece[:150_000])
        while True:
            connection.sendall(piece[150_001:] + piece[:150_001])
    record = run(source, "source", "--count", "20000000", "--period", "300000")
    assert "wrong bytes at offset" in record["error"]


def test_transfer_asks_and_takes_so_many_bytes():
    asked = []

    def serve(connection):
        while request := connection.recv(8):
            asked.append(struct.unpack("<Q", request)[0])
            connection.sendall(pattern(asked[-1]))
    record = run(serve, "transfer", "--transfer", "800000", "--count", "3")
    assert asked == [100_000, 800_000, 800_000, 800_000]
    assert record["units"] == 2_400_000


def test_transfer_notices_a_short_answer():
    def serve(connection):
        connection.sendall(pattern(struct.unpack("<Q", receive(connection, 8))[0] - 1))
    record = run(serve, "transfer", "--transfer", "800000", "--count", "3")
    assert "closed the connection after 99999 bytes" in record["error"]


def test_connections_one_after_the_other():
    accepted = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [str(build.loadgen()), "connect", "--count", "20", "--size", "64"]
        command += ["--port", str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            # The first connection is the readiness check; it carries nothing.
            while accepted < 21:
                connection, _ = listener.accept()
                accepted += 1
                with connection:
                    echo(connection)
            output, _ = process.communicate()
    record = json.loads(output)
    assert (record["units"], record["verified"]) == (20, 20)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["echo"], "--port is needed"),
        (["echo", "--port", "1"], "--seconds or --count"),
        (["dance", "--port", "1", "--count", "1"], "unknown mode"),
        (["echo", "--port", "1", "--count", "1", "--size", "7"], "at least 8 bytes"),
        (["echo", "--port", "1", "--count", "many"], "not a number"),
        (["echo", "--port", "1", "--count", "1", "--depth", "0"], "at least 1"),
        (
            ["echo", "--port", "1", "--count", "1", "--interval-us", "9", "--depth", "2"],
            "one message in flight",
        ),
    ],
)
def test_wrong_arguments(arguments, complaint):
    assert complaint in alone(*arguments)
