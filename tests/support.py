"""Tools of the tests: recording protocols, connections to a raw socket, and barriers."""
import asyncio
import contextlib
import os
import socket
import struct
import tempfile

import pytest

KINDS = ("tcp-client", "tcp-server", "unix-client", "unix-server")


def known_gap(loop, reason, when=True, run=True):
    """Mark: on `loop` this test must fail (strict xfail). run=False only where it would hang."""
    return pytest.mark.known_gap(loop, reason, when=when, run=run)


class Recorder:
    """Records callbacks in order; `until()` waits for a state without a clock.

    Shared half of RecordingProtocol and RecordingBuffered. `eof_result` is what eof_received
    returns; `hook`, if set, is called as hook(self, name) at the end of each callback.
    """

    def __init__(self, eof_result=None, hook=None):
        self.calls = []
        self.data = bytearray()
        self.transport = None
        self.exc = None
        self.eof_result = eof_result
        self.hook = hook
        self._waiters = []

    def note(self, name):
        self.calls.append(name)
        try:
            if self.hook is not None:
                self.hook(self, name)
        finally:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    async def until(self, predicate):
        while not predicate():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def received(self, n):
        await self.until(lambda: len(self.data) >= n)

    async def called(self, name):
        await self.until(lambda: name in self.calls)

    def connection_made(self, transport):
        self.transport = transport
        self.note("connection_made")

    def connection_lost(self, exc):
        self.exc = exc
        self.note("connection_lost")

    def pause_writing(self):
        self.note("pause_writing")

    def resume_writing(self):
        self.note("resume_writing")

    def eof_received(self):
        self.note("eof_received")
        return self.eof_result


class RecordingProtocol(Recorder, asyncio.Protocol):
    def data_received(self, data):
        assert type(data) is bytes, type(data)
        self.data += data
        self.note("data_received")


class RecordingBuffered(Recorder, asyncio.BufferedProtocol):
    """Lends `size` bytes at a time, and checks that no more than that is reported."""

    def __init__(self, size=65536, **kwargs):
        super().__init__(**kwargs)
        self.buffer = bytearray(size)
        self.hints = []

    def get_buffer(self, sizehint):
        self.hints.append(sizehint)
        return self.buffer

    def buffer_updated(self, nbytes):
        assert 0 < nbytes <= len(self.buffer), nbytes
        self.data += self.buffer[:nbytes]
        self.note("buffer_updated")


FACTORIES = {"protocol": RecordingProtocol, "buffered": RecordingBuffered}


def listener(family=socket.AF_INET, path=None):
    """A blocking listening socket on the loopback address, port 0, or on a unix path."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_UNIX:
            sock.bind(path)
        else:
            # Without it, port 0 finds none while earlier tests' connections are in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        sock.listen()
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def unix_path():
    """A path short enough for sun_path, gone with its directory afterwards."""
    with tempfile.TemporaryDirectory(prefix="zc") as folder:
        yield os.path.join(folder, "s")


@contextlib.asynccontextmanager
async def link(kind="tcp-client", factory=RecordingProtocol):
    """(transport, protocol, peer): a connection of the running loop to a raw non-blocking socket.

    `kind` says what the loop's end is. At exit the transport is aborted if the test left it open,
    and connection_lost must have been called by then.
    """
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        unix = kind.startswith("unix")
        path = stack.enter_context(unix_path()) if unix else None
        if kind.endswith("client"):
            with listener(socket.AF_UNIX if unix else socket.AF_INET, path) as listening:
                if unix:
                    transport, protocol = await loop.create_unix_connection(factory, path)
                else:
                    transport, protocol = await loop.create_connection(
                        factory, *listening.getsockname())
                peer, _ = listening.accept()
        else:
            made = []

            def make():
                made.append(factory())
                return made[0]
            if unix:
                server = await loop.create_unix_server(make, path)
            else:
                server = await loop.create_server(make, "127.0.0.1", 0)
            peer = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
            try:
                peer.connect(path if unix else server.sockets[0].getsockname())
                await poll(lambda: made and made[0].transport)
            except BaseException:
                peer.close()
                raise
            server.close()
            protocol = made[0]
            transport = protocol.transport
        peer.setblocking(False)
        try:
            yield transport, protocol, peer
        finally:
            last = transport.get_protocol()
            peer.close()
            # asyncio forgets the protocol after connection_lost, and abort() then fails on 3.11.
            if last is not None and "connection_lost" not in last.calls:
                transport.abort()
                await last.called("connection_lost")


async def poll(predicate):
    """Let the loop turn until `predicate` holds; for states that nobody announces."""
    while not predicate():
        await asyncio.sleep(0.001)


async def settle(rounds=4):
    """Barrier: whatever was readable when called has been dispatched when this returns.

    Each round trip makes the loop poll its selector at least once; what another process or the
    loopback device had queued before is then seen too, also through a nested epoll instance.
    """
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        for _ in range(rounds):
            left.send(b"x")
            assert await loop.sock_recv(right, 1) == b"x"
            await asyncio.sleep(0)


async def recv_exactly(sock, n):
    loop = asyncio.get_running_loop()
    chunks = bytearray()
    while len(chunks) < n:
        chunk = await loop.sock_recv(sock, min(1 << 20, n - len(chunks)))
        assert chunk, f"end of stream after {len(chunks)} of {n} bytes"
        chunks += chunk
    return bytes(chunks)


async def recv_to_end(sock):
    loop = asyncio.get_running_loop()
    chunks = bytearray()
    while chunk := await loop.sock_recv(sock, 1 << 20):
        chunks += chunk
    return bytes(chunks)


def reset(sock):
    """Close a TCP socket with a RST instead of a FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def fill(transport, chunk=b"f" * 65536):
    """Write until bytes stay in the transport's buffer; returns what was written in all."""
    total = 0
    while transport.get_write_buffer_size() == 0:
        transport.write(chunk)
        total += len(chunk)
    return total


def assert_same(left, right):
    """Equality of much data: a failure says where, instead of a diff that takes minutes."""
    left, right = bytes(left), bytes(right)
    if left != right:
        at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
                  min(len(left), len(right)))
        raise AssertionError(f"{len(left)} and {len(right)} bytes that differ from index {at} on: "
                             f"{left[at:at + 16]!r}, {right[at:at + 16]!r}")


def pattern(n, seed=0):
    """n bytes in which every 8-byte word is its own index: misplaced data is told from lost."""
    words = (n + 7) // 8
    return struct.pack(f"<{words}Q", *range(seed, seed + words))[:n]
