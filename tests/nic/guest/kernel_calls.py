"""The kernel calls under test, made without zcloop: what the cards do is known independently.

Python's socket module names neither; linux/tcp.h and linux/errqueue.h do.
"""
import ctypes
import os
import select
import socket
import struct
from mmap import MAP_SHARED, PROT_READ

SO_ZEROCOPY = 60
MSG_ZEROCOPY = 0x4000000
_ORIGIN_ZEROCOPY = 5
_TCP_ZEROCOPY_RECEIVE = 35

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class ZeroCopySender:
    """A blocking socket that sends without copying, and counts what the kernel reports."""

    def __init__(self, sock):
        sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        self._sock = sock
        self.calls = self.completed = self.copied = 0

    def send(self, data):
        """As a socket's: the number of bytes taken."""
        sent = self._sock.send(data, MSG_ZEROCOPY)
        self.calls += 1     # a failed call is none
        return sent

    def sendall(self, data):
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                sent += self.send(view[sent:])

    def reap(self):
        """Wait until every call is completed."""
        poll = select.poll()
        poll.register(self._sock, 0)    # POLLERR is always asked for
        while self.completed < self.calls:
            poll.poll()
            _, ancillary, _, _ = self._sock.recvmsg(1, 256, socket.MSG_ERRQUEUE)
            for _, _, record in ancillary:
                _, origin, _, code, _, low, high = struct.unpack_from("=IBBBBII", record)
                assert origin == _ORIGIN_ZEROCOPY, record
                self.completed += high - low + 1
                self.copied += (high - low + 1) * code


def is_stalled(sock):
    """Whether the peer's window is closed: there is more to send, and nothing on its way."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 148)    # struct tcp_info
    unacknowledged_segments, = struct.unpack_from("=I", info, 24)
    unsent_bytes, = struct.unpack_from("=I", info, 144)
    return unsent_bytes > 0 and unacknowledged_segments == 0


class _ZeroCopyReceive(ctypes.Structure):
    """struct tcp_zerocopy_receive of linux/tcp.h, as far as Linux 5.11 knows it."""

    _fields_ = [("address", ctypes.c_uint64), ("length", ctypes.c_uint32),
                ("recv_skip_hint", ctypes.c_uint32), ("inq", ctypes.c_uint32),
                ("err", ctypes.c_int32), ("copybuf_address", ctypes.c_uint64),
                ("copybuf_len", ctypes.c_int32), ("flags", ctypes.c_uint32)]


def receive_mapped(sock, window=512 * 1024):
    """Yield (bytes, whether they were mapped) until the stream ends; a blocking socket."""
    with socket.socket() as never_connected:
        address = _libc.mmap(None, window, PROT_READ, MAP_SHARED, never_connected.fileno(), 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap of a TCP socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, window // 2)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    try:
        while True:
            poll.poll()
            request = _ZeroCopyReceive(address=address, length=window)
            size = ctypes.c_uint32(ctypes.sizeof(request))
            if _libc.getsockopt(sock.fileno(), socket.IPPROTO_TCP, _TCP_ZEROCOPY_RECEIVE,
                                ctypes.byref(request), ctypes.byref(size)):
                if ctypes.get_errno() == 5:     # EIO: the end of the stream
                    return
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            if request.length:
                yield ctypes.string_at(address, request.length), True
            if request.recv_skip_hint:
                data = sock.recv(min(request.recv_skip_hint, window))
                if not data:
                    return
                yield data, False
    finally:
        _libc.munmap(address, window)
