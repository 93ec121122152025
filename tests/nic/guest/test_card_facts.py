"""What the cards do, shown without zcloop: on them the other tests of this folder prove something.

A send is completed without COPIED, memory that is changed before its completion arrives changed,
and a plain sender's data can be mapped. Over loopback in the same guest neither is so.
"""
import contextlib
import socket

import peers
import pytest
from kernel_calls import ZeroCopySender, receive_mapped

MIB = 1 << 20
FAMILIES = pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6],
                                   ids=["ipv4", "ipv6"])


@FAMILIES
def test_sends_complete_without_a_copy(peer, family):
    sizes = [MIB] * 16
    peer.start(peers.receive, sizes, family)
    with socket.create_connection(peer.told_now()) as sock:
        sender = ZeroCopySender(sock)
        for number, size in enumerate(sizes):
            sender.sendall(peers.message(number, size))
            sender.reap()
        sock.shutdown(socket.SHUT_WR)
        assert peer.told_now() == (sum(sizes), "end")
    assert sender.completed == sender.calls >= len(sizes)
    assert sender.copied == 0


def test_memory_changed_before_its_completion_arrives_changed(peer):
    """So a buffer that zcloop let go of too early would be noticed."""
    buffer = bytearray(peers.message(0, MIB))
    peer.start(peers.receive, [MIB], socket.AF_INET, 0)
    with socket.create_connection(peer.told_now()) as sock, memoryview(buffer) as view:
        sender = ZeroCopySender(sock)
        sock.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:     # the peer reads nothing yet: it can't all be in its memory
                sent += sender.send(view[sent:])
        buffer[:] = bytes(MIB)
        peer.tell("read")
        sock.shutdown(socket.SHUT_WR)
        with pytest.raises(AssertionError, match=r"message 0: \d+ of \d+ bytes are wrong"):
            peer.told_now()
    assert sent < MIB


def test_a_plain_senders_data_is_mapped(peer):
    sizes = [MIB] * 32
    peer.start(peers.send, sizes)
    received = bytearray()
    mapped = 0
    with socket.create_connection(peer.told_now()) as sock:
        for data, is_mapped in receive_mapped(sock):
            received += data
            mapped += len(data) * is_mapped
    assert received == b"".join(map(peers.message, range(len(sizes)), sizes))
    assert mapped >= 0.99 * len(received)


def test_loopback_copies_and_maps_nothing():
    """The same calls where no card is: they tell one from the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        out = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    with out, there:
        sender = ZeroCopySender(out)
        sender.sendall(peers.message(0, 64 * 1024))
        there.recv(64 * 1024, socket.MSG_WAITALL)
        sender.reap()
        assert sender.copied == sender.calls
        there.sendall(peers.message(1, 64 * 1024))
        there.shutdown(socket.SHUT_WR)
        assert not any(mapped for _, mapped in receive_mapped(out))
