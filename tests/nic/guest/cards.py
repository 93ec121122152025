"""The guest's two cards, as `tests/nic/init` sets them up."""
import array
import contextlib
import ctypes
import fcntl
import os
import socket
import struct

PEER_NAMESPACE = "NIC_PEER_NAMESPACE"   # environment variable with the path of the far network
HERE = {socket.AF_INET: "10.9.0.1", socket.AF_INET6: "fd09::1"}
THERE = {socket.AF_INET: "10.9.0.2", socket.AF_INET6: "fd09::2"}

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

# linux/sockios.h and linux/ethtool.h
_SIOCETHTOOL = 0x8946
GET = {"tx-checksumming": 0x16, "sg": 0x18, "tso": 0x1E}
SET_TSO = 0x1F


def enter(namespace):
    """Move this thread into the network namespace at a path. (os.setns is of Python 3.12.)"""
    fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns({namespace})")
    finally:
        os.close(fd)


@contextlib.contextmanager
def socket_in(namespace):
    """A datagram socket of the namespace, or of our own for None."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if namespace:
            enter(namespace)
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        finally:
            enter(f"/proc/self/fd/{home}")
    finally:
        os.close(home)
    with sock:
        yield sock


def _ethtool(sock, interface, command, data=0):
    value = array.array("I", [command, data])   # struct ethtool_value
    request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])    # struct ifreq
    fcntl.ioctl(sock, _SIOCETHTOOL, request)
    return value[1]


def get_offload(sock, interface, command):
    return _ethtool(sock, interface, command)


def set_offload(sock, interface, command, on):
    _ethtool(sock, interface, command, on)
