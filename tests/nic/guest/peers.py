"""The process behind the far card, and what it does there with plain blocking sockets.

A test tells it one job at a time: a function of this module, whose first argument is the line to
the test and whose result `outcome()` gives. What the functions receive they compare with what
must come, byte by byte; a difference fails the test with its place.
"""
import asyncio
import contextlib
import multiprocessing
import os
import random
import signal
import socket
import threading
import traceback

import cards

_FORK = multiprocessing.get_context("fork")

_PERIOD = 1_048_583     # a prime: no two messages of a test are alike at the same offset
_STREAM = random.Random("zcloop").randbytes(_PERIOD)
_TWICE = _STREAM * 2


def message(number, size):
    """The bytes of message `number`: no other's, of at most 1 MiB."""
    start = number * 40_009 % _PERIOD
    return _TWICE[start:start + size]


def differences(got, expected):
    """What to say of two unequal byte strings of one length."""
    places = [n for n, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b]
    return f"{len(places)} of {len(got)} bytes are wrong, from {places[0]} on"


class Peer:
    """The process; the test's end of its line. Both fork and line end with the `with` block."""

    def __init__(self, namespace):
        self._line, theirs = multiprocessing.Pipe()
        self._process = _FORK.Process(target=_serve, args=(namespace, self._line, theirs))
        self._process.start()
        theirs.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        # It may be in the middle of a job that will never end: the test failed, or stalled it.
        self._process.kill()
        self._process.join()
        self._process.close()
        self._line.close()

    def start(self, job, *args):
        self._line.send((job, args))

    def tell(self, what):
        """To the job, which reads it from its line."""
        self._line.send(what)

    async def told(self):
        """What the job sends; a job that failed fails the test."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        loop.add_reader(self._line.fileno(), lambda: waiter.done() or waiter.set_result(None))
        try:
            await waiter
        finally:
            loop.remove_reader(self._line.fileno())
        return self.told_now()

    def told_now(self):
        kind, what = self._line.recv()
        if kind == "failed":
            raise AssertionError(f"the peer failed:\n{what}")
        return what

    outcome = told      # of the job: what it returns is sent, too


class _Line:
    """The job's end: `send` tells the test, `recv` hears it."""

    def __init__(self, connection):
        self._connection = connection
        self.recv = connection.recv

    def send(self, what):
        self._connection.send(("told", what))


def _serve(namespace, theirs, connection):
    theirs.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cards.enter(namespace)
    with contextlib.suppress(EOFError):
        while True:
            job, args = connection.recv()
            try:
                answer = ("told", job(_Line(connection), *args))
            except Exception:
                answer = ("failed", traceback.format_exc())
            connection.send(answer)
    os._exit(0)


# -- jobs -----------------------------------------------------------------------------------------


def _accept(line, family):
    """One connection, after having told the test where to connect to."""
    with socket.create_server((cards.THERE[family], 0), family=family) as listener:
        line.send(listener.getsockname()[:2])
        return listener.accept()[0]


def _fill(sock, view):
    """Receive until the view is full: (bytes, None), or (bytes, "end" or "reset")."""
    got = 0
    while got < len(view):
        try:
            n = sock.recv_into(view[got:])
        except ConnectionResetError:
            return got, "reset"
        if not n:
            return got, "end"
        got += n
    return got, None


def _check(sock, numbers_and_sizes):
    """Receive messages: (bytes, how the stream ended or None, what was wrong).

    However and wherever it ends, what came must be right; what was wrong is told when it has
    ended, so that the sender sees a peer that reads all.
    """
    total = 0
    wrong = []
    for number, size in numbers_and_sizes:
        buffer = bytearray(size)
        with memoryview(buffer) as view:
            got, ended = _fill(sock, view)
        total += got
        expected = message(number, size)[:got]
        if buffer[:got] != expected:
            wrong.append(f"message {number}: {differences(buffer[:got], expected)}")
        if ended:
            return total, ended, wrong
    return total, None, wrong


def receive(line, sizes, family=socket.AF_INET, stall_at=None):
    """Receive and check the messages 0, 1, ... of these sizes: (bytes, "end" or "reset").

    The message number `stall_at`, and what follows it, is not read until the test says something.
    """
    def messages():
        for number, size in enumerate(sizes):
            if number == stall_at:
                line.recv()
            yield number, size

    with _accept(line, family) as sock:
        total, ended, wrong = _check(sock, messages())
        if not ended:
            more, ended = _fill(sock, memoryview(bytearray(1)))
            if more:
                wrong.append("more bytes than were sent")
    if wrong:
        raise AssertionError("\n".join(wrong))
    return total, ended


def receive_many(line, streams):
    """Receive and check many streams at once: [(bytes, "end", "reset" or "left")].

    Each is (number of its first message, sizes, what to do): "read" all of it, "leave" half-way,
    or "stall" until the test says something. They connect in this order.
    """
    results = [None] * len(streams)
    wrong = []
    go_on = threading.Event()

    def serve(index, sock):
        first, sizes, manner = streams[index]
        if manner == "stall":
            go_on.wait()
        if manner == "leave":
            sizes = sizes[:len(sizes) // 2]
        with sock:
            total, ended, bad = _check(sock, enumerate(sizes, first))
            if not ended and manner != "leave":
                _, ended = _fill(sock, memoryview(bytearray(1)))
        wrong.extend(f"stream {index}: {words}" for words in bad)
        results[index] = total, ended or "left"

    threads = []
    with socket.create_server((cards.THERE[socket.AF_INET], 0)) as listener:
        line.send(listener.getsockname()[:2])
        for index in range(len(streams)):
            threads.append(threading.Thread(target=serve, args=(index, listener.accept()[0])))
            threads[-1].start()
    line.recv()
    go_on.set()
    for thread in threads:
        thread.join()
    if wrong:
        raise AssertionError("\n".join(wrong))
    return results


def send(line, sizes, family=socket.AF_INET, address=None, asked=False):
    """Send the messages 0, 1, ... of these sizes with plain `send`, then end the stream.

    To whom connects or, with an address, to whom listens there; when a byte has asked for it, or
    at once.
    """
    connection = socket.create_connection(address) if address else _accept(line, family)
    with connection as sock:
        if asked:
            sock.recv(1)
        for number, size in enumerate(sizes):
            sock.sendall(message(number, size))
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)    # the receiver's end: all has arrived
