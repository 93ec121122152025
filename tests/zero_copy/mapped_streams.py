"""Streams over loopback whose bytes the kernel delivers in whole, mappable pages.

Kernel facts: on loopback only a MSG_ZEROCOPY sender's bytes lie in single pages (the copy that is
made at delivery puts them there), and with segments of one page each of them fills one exactly.
A window's edge may still cut a page in two, so a test may ask for the stream to be right and
for most of it to be mapped, never for all.
"""
import asyncio
import contextlib
import gc
import os
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import zcloop
from zcloop import pages

PAGE = os.sysconf("SC_PAGE_SIZE")
SEGMENT = PAGE + 12                  # and the timestamps' bytes
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
MAP = zcloop.Config(receive="map")

can_map = zcloop.capabilities()["tcp_zerocopy_map"]
needs_mapping = pytest.mark.skipif(not can_map, reason=f"pages can't be mapped: {can_map.detail}")


def pattern(pages_, seed=0):
    """That many pages, no two of them alike."""
    return random.Random(seed).randbytes(pages_ * PAGE)


def listen():
    """A listener for create_server, whose connections get segments of one page."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


def send(address, data):
    """Sends from a blocking socket, then closes it in order."""
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        sock.connect(address)
        left = memoryview(data)
        while left:
            left = left[sock.send(left[:16 * PAGE], MSG_ZEROCOPY):]
            with contextlib.suppress(BlockingIOError):  # completions, which use up memory
                while True:
                    sock.recvmsg(0, 256, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""      # the receiver has closed: it has all


class Pages(zcloop.PagesProtocol):
    """Takes a stream into `parts`: views as they come, and copied bytes."""

    def __init__(self, on_view=None):
        self.parts = []
        self.on_view = on_view or self.parts.append
        self.buffer = bytearray(64 * 1024)
        self.stats = None
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.parts.append(bytes(self.buffer[:nbytes]))

    def pages_received(self, view):
        self.on_view(view)

    def connection_lost(self, exc):
        self.stats = self.transport.get_extra_info("zcloop")
        if exc:
            self.lost.set_exception(exc)
        else:
            self.lost.set_result(None)


class Fill(asyncio.BufferedProtocol):
    """Receives into a PageBuffer, from its beginning again whenever it is full."""

    def __init__(self, buffer):
        self.buffer = buffer
        self.received = 0
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return memoryview(self.buffer)[self.received % len(self.buffer):]

    def buffer_updated(self, nbytes):
        self.received += nbytes

    def connection_lost(self, exc):
        self.stats = self.transport.get_extra_info("zcloop")
        self.lost.set_result(exc)


async def serve_one(factory, data):
    """Has `data` sent to one connection of the protocol, which is returned when it is lost."""
    loop = asyncio.get_running_loop()
    made = loop.create_future()

    def make():
        protocol = factory()
        made.set_result(protocol)
        return protocol

    listener = listen()
    server = await loop.create_server(make, sock=listener)
    sender = threading.Thread(target=send, args=(listener.getsockname(), data))
    sender.start()
    try:
        protocol = await made
        await protocol.lost
    finally:
        server.close()
        await server.wait_closed()
        sender.join()
    return protocol


def receive(data, config=MAP, on_view=None):
    """The parts that a PagesProtocol got of a stream, in order; at least a page was mapped."""
    protocol = zcloop.run(serve_one(lambda: Pages(on_view), data), config=config)
    assert protocol.stats.bytes_mapped >= PAGE, protocol.stats
    return protocol.parts


def fill(buffer, data):
    """Receives a stream into a PageBuffer, whose last round it then holds."""
    protocol = zcloop.run(serve_one(lambda: Fill(buffer), data), config=MAP)
    assert protocol.lost.result() is None
    assert protocol.received == len(data)
    assert protocol.stats.bytes_mapped >= PAGE, protocol.stats
    assert memoryview(buffer) == data[-len(buffer):]
    return protocol.stats


def views_of(data):
    """Mapped views of a stream of whole pages, of which nothing was copied."""
    while True:
        parts = receive(data)
        if all(isinstance(part, memoryview) for part in parts):
            return parts
        del parts   # a window's edge cut a page


def leased():
    """Bytes of the arena in use."""
    gc.collect()
    return pages.page_stats().leased_bytes


def run_script(script, *options):
    """Runs Python code that may import from here in a process of its own, warnings being errors.

    It must end with 0 and print nothing to standard error; returns its standard output.
    """
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-W", "error", *options, "-c", script], text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(here)})
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr, done.stdout)
    return done.stdout
