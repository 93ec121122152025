"""The C program receives what was sent, by copy and by mapping, and notices what wasn't sent."""
import contextlib
import json
import re
import socket
import struct
import subprocess

import pytest

import zcloop
from benchmarks import build

PAGE = 4096
MSS = PAGE + 12
RECEIVERS = ("reused", "fresh", "map", "map-keep")
SENDERS = ("plain", "zerocopy", "sendfile", "splice")
can_map = pytest.mark.skipif(
    not zcloop.capabilities()["tcp_zerocopy_map"],
    reason="this kernel maps no pages of a loopback connection",
)


def command(*words):
    return [str(build.reference()), *map(str, words)]


def loopback(kind, sender, *words):
    """Both halves as processes; the records of receiver and sender."""
    done = subprocess.run(
        command("loopback", kind, "--sender", sender, *words), capture_output=True, text=True
    )
    record = json.loads(done.stdout)
    assert done.returncode == 0, record
    return record["receiver"], record["sender"]


@can_map
@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("kind", RECEIVERS)
def test_every_receiver_takes_from_every_sender(kind, sender):
    received, sent = loopback(kind, sender, "--bytes", "8m", "--size", "64k", "--mss", MSS)
    assert received["bytes"] == sent["bytes"] == 8 << 20
    assert received["verified"] is True
    assert received["hash"] == sent["hash"]
    assert sent["messages"] == 128
    mappable = kind.startswith("map") and sender in ("zerocopy", "splice")
    assert (received["mapped"] > 0) == mappable
    assert received["mapped"] % PAGE == 0
    assert (sent["zerocopy_sends"] > 0) == (sender == "zerocopy")


@can_map
def test_the_record_counts_what_it_says():
    words = ("--bytes", "8m", "--size", "64k", "--mss", MSS, "--warmup", "1m")
    record, _ = loopback("map", "splice", *words)
    assert (8 << 20) - (1 << 20) >= record["measured_bytes"] > 6 << 20
    assert record["mapped_share"] == pytest.approx(record["mapped"] / record["bytes"], abs=1e-5)
    assert record["map_calls"] > 0
    assert record["cpu_us"] > 0
    calls = record["recv_calls"] + record["map_calls"]
    assert record["receive_calls_per_message"] == pytest.approx(calls / 128, abs=1e-2)


@can_map
def test_headers_and_answers():
    """One message at a time: the sender goes on only when it has the answer."""
    words = ("--bytes", 100 * (64 + 32768), "--size", "32k", "--header", 64, "--answer", 64)
    received, sent = loopback("map", "splice", *words)
    assert received["verified"] is True
    assert sent["messages"] == 100


@pytest.mark.parametrize("kind", ("reused", "fresh"))
def test_sizes_that_fit_nothing(kind):
    received, _ = loopback(kind, "plain", "--bytes", 1001 * 999, "--size", 999, "--lowat", 5000)
    assert received["verified"] is True


def test_a_paced_sender_takes_its_time():
    words = ("--bytes", "4m", "--size", "16k", "--pace", "40m")
    _, sent = loopback("reused", "plain", *words)
    assert sent["seconds"] >= 0.1


def test_without_a_hash_nothing_is_verified():
    received, _ = loopback("reused", "plain", "--bytes", "1m", "--size", "64k", "--no-hash")
    assert received["verified"] is None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("loopback", "reused", "--bytes", "100", "--size", "64"), "a whole number of messages"),
        (("loopback", "reused", "--size", "64x"), "not a number of bytes: 64x"),
        (("loopback", "reused", "--bytes", "-1"), "not a number of bytes: -1"),
        (("loopback", "reused", "--warmup", "2g"), "--warmup: less than --bytes"),
        (("receive",), "usage"),
        (("dance", "reused"), "usage"),
        (("send", "smoke", "--port", "1"), "connect"),
    ],
)
def test_refusals(words, complaint):
    done = subprocess.run(command(*words), capture_output=True, text=True)
    assert done.returncode == 1
    assert complaint in json.loads(done.stdout)["error"]


def test_unknown_kinds_are_refused():
    done = subprocess.run(
        command("loopback", "juggle", "--sender", "smoke"), capture_output=True, text=True
    )
    assert done.returncode == 1
    record = json.loads(done.stdout)
    assert "no such kind" in record["receiver"]["error"]


# -- against a sender of our own ----------------------------------------------


def pattern(nbytes):
    """The stream, written a second time: xorshift64 words, repeated after a prime number of
    pages."""
    x, words = 0x2545F4914F6CDD1D, []
    for _ in range(257 * PAGE // 8):
        x ^= x << 13 & (1 << 64) - 1
        x ^= x >> 7
        x ^= x << 17 & (1 << 64) - 1
        words.append(x)
    period = struct.pack(f"<{len(words)}Q", *words)
    return (period * (nbytes // len(period) + 1))[:nbytes]


def receive_from(send, kind, nbytes, *words):
    """Runs a receiver against `send(connection)`; its record."""
    arguments = command("receive", kind, "--bytes", nbytes, "--size", "16k", *words)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        port = json.loads(process.stdout.readline())["port"]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            send(connection)
        output, _ = process.communicate()
    record = json.loads(output)
    assert process.returncode == (1 if "error" in record else 0)
    return record


def sending(data):
    def send(connection):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    return send


kinds = pytest.mark.parametrize(
    "kind", ["reused", "fresh", *(pytest.param(kind, marks=can_map) for kind in RECEIVERS[2:])]
)
NBYTES = 64 << 10


@kinds
def test_the_stream_is_what_it_is_said_to_be(kind):
    record = receive_from(sending(pattern(NBYTES)), kind, NBYTES)
    assert record["verified"] is True


@kinds
@pytest.mark.parametrize("damage", ["flipped bit", "swapped pages", "doubled page"])
def test_wrong_bytes_are_noticed(kind, damage):
    data = bytearray(pattern(NBYTES))
    if damage == "flipped bit":
        data[NBYTES // 2] ^= 16
    elif damage == "swapped pages":
        data[:PAGE], data[PAGE : 2 * PAGE] = data[PAGE : 2 * PAGE], data[:PAGE]
    else:
        data[PAGE : 2 * PAGE] = data[:PAGE]
    record = receive_from(sending(data), kind, NBYTES)
    assert record["error"] == "the bytes that came are not those that were sent"


@kinds
def test_a_short_stream_is_noticed(kind):
    record = receive_from(sending(pattern(NBYTES - 1)), kind, NBYTES)
    assert re.fullmatch(f"{NBYTES - 1} bytes came, and not {NBYTES}", record["error"])


@kinds
def test_a_reset_is_no_end_of_stream(kind):
    def send(connection):
        connection.sendall(pattern(NBYTES))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    record = receive_from(send, kind, NBYTES)
    assert "reset by peer" in record["error"]


@kinds
def test_urgent_data_does_not_stop_it(kind):
    """The urgent byte is no part of the stream, and the mark before it makes the mapping call
    return nothing for as long as nobody reads past it."""
    def send(connection):
        data = pattern(NBYTES)
        connection.sendall(data[: NBYTES // 2])
        connection.send(b"!", socket.MSG_OOB)
        # The urgent byte, which nobody reads, may make a reset of the receiver's close.
        with contextlib.suppress(ConnectionResetError):
            sending(data[NBYTES // 2 :])(connection)
    record = receive_from(send, kind, NBYTES)
    assert record["verified"] is True
