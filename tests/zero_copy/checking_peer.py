"""A receiver that knows every byte it is to get: the other process of the send stress tests.

A stream is HEADER (key, how the receiver is to behave, and at which byte), then the bytes that
`stream(key, offset, size)` names: a random block, repeated, which begins at another place for each
key. Its period is prime, so bytes of another connection, of another place in this one, or of memory
that was freed and overwritten, are wrong bytes.

As a program it prints the ports of two listeners (the second has a small receive buffer), takes
lines on standard input, `resume KEY` and `end`, and prints after the latter, as JSON, for each key:
how many bytes came after the header, the offset of the first wrong one (or -1), and how it ended.
`end` also lets those go on that stall, and it is obeyed once every connection has ended.
"""
import contextlib
import json
import os
import random
import selectors
import socket
import struct
import sys

HEADER = struct.Struct("<IIQ")
READ, RESET, STALL = range(3)
"""Read to the end; reset the connection once so many bytes have come; stop reading there."""

PERIOD = 1_048_583
MAX_PIECE = 8 << 20
_TILED = random.Random(20).randbytes(PERIOD) * (MAX_PIECE // PERIOD + 2)
SMALL_BUFFER = 64 << 10
CHUNK = 256 << 10


def stream(key, offset, size):
    """`size` (at most MAX_PIECE) bytes of the stream `key` from `offset` on: always new memory."""
    start = (key * 2_654_435_761 + offset) % PERIOD
    return _TILED[start:start + size]


class Incoming:
    """One connection of the receiver."""

    def __init__(self, sock):
        self.sock = sock
        self.header = b""
        self.key = self.received = self.limit = 0
        self.behaviour = READ
        self.wrong = -1
        self.ended = None

    def take(self, data):
        if len(self.header) < HEADER.size:
            lacking = HEADER.size - len(self.header)
            self.header += data[:lacking]
            data = data[lacking:]
            if len(self.header) < HEADER.size:
                return
            self.key, self.behaviour, self.limit = HEADER.unpack(self.header)
        expected = stream(self.key, self.received, len(data))
        if self.wrong < 0 and data != expected:
            self.wrong = self.received + next(
                i for i, (a, b) in enumerate(zip(data, expected, strict=True)) if a != b)
        self.received += len(data)

    @property
    def known(self):
        return len(self.header) == HEADER.size

    def due(self, behaviour):
        return self.known and self.behaviour == behaviour and self.received >= self.limit


class Peer:
    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.incoming = {}          # open ones
        self.finished = []
        self.resumed = set()
        self.ending = False
        self.buffer = bytearray(CHUNK)
        self.listeners = [self.listen(None), self.listen(SMALL_BUFFER)]
        self.commands = b""
        self.selector.register(0, selectors.EVENT_READ, self.command)

    def listen(self, receive_buffer):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.bind(("127.0.0.1", 0))
        sock.listen(512)
        sock.setblocking(False)
        self.selector.register(sock, selectors.EVENT_READ, self.accept)
        return sock

    def command(self, _):
        data = os.read(0, 65536)
        if not data:
            sys.exit("the sender has gone without an end")
        *lines, self.commands = (self.commands + data).split(b"\n")
        for line in lines:
            if line == b"end":
                self.ending = True
                self.selector.unregister(0)
                for listener in self.listeners:     # those that nobody has looked at yet
                    with contextlib.suppress(BlockingIOError):
                        while True:
                            self.accept(listener)
                for incoming in list(self.incoming.values()):
                    self.wake(incoming)
            else:
                self.resumed.add(key := int(line.removeprefix(b"resume ")))
                for incoming in list(self.incoming.values()):
                    if incoming.known and incoming.key == key:
                        self.wake(incoming)

    def accept(self, listener):
        sock, _ = listener.accept()
        sock.setblocking(False)
        self.incoming[sock] = Incoming(sock)
        self.selector.register(sock, selectors.EVENT_READ, self.read)

    def wake(self, incoming):
        if incoming.sock not in self.selector.get_map():
            self.selector.register(incoming.sock, selectors.EVENT_READ, self.read)

    def read(self, sock):
        incoming = self.incoming[sock]
        # Up to the limit, not beyond it: what the behaviour is about lies behind.
        room = CHUNK
        if not incoming.known:
            room = HEADER.size - len(incoming.header)
        elif incoming.behaviour != READ and incoming.received < incoming.limit:
            room = min(CHUNK, incoming.limit - incoming.received)
        try:
            size = sock.recv_into(self.buffer, room)
        except BlockingIOError:
            return
        except OSError as exc:
            self.finish(incoming, type(exc).__name__)
            return
        if not size:
            self.finish(incoming, "eof")
            return
        incoming.take(bytes(self.buffer[:size]))
        if incoming.due(RESET):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.finish(incoming, "reset by us")
        elif incoming.due(STALL) and incoming.key not in self.resumed and not self.ending:
            self.selector.unregister(sock)

    def finish(self, incoming, how):
        if incoming.sock in self.selector.get_map():
            self.selector.unregister(incoming.sock)
        incoming.sock.close()
        del self.incoming[incoming.sock]
        incoming.ended = how
        self.finished.append(incoming)

    def run(self):
        print(json.dumps([sock.getsockname()[1] for sock in self.listeners]), flush=True)
        while not self.ending or self.incoming:
            for key, _ in self.selector.select():
                key.data(key.fileobj)
        print(json.dumps({one.key: [one.received, one.wrong, one.ended]
                          for one in self.finished if one.known}), flush=True)


if __name__ == "__main__":
    Peer().run()
