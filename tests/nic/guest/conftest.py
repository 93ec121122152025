"""Only for the guest of `make test-nic`: its two cards, and a process at the far one."""
import os

import cards
import pytest
from peers import Peer

if cards.PEER_NAMESPACE not in os.environ:
    raise pytest.UsageError("tests/nic/guest runs inside the guest of 'make test-nic' only; "
                            "tests/nic/README.md says why")


@pytest.fixture(scope="session", autouse=True)
def segmentation_off():
    """QEMU fragments what a card would segment, and then less than a quarter can be mapped."""
    for interface, namespace in (("eth0", None), ("eth1", os.environ[cards.PEER_NAMESPACE])):
        with cards.socket_in(namespace) as sock:
            cards.set_offload(sock, interface, cards.SET_TSO, 0)
            offloads = {name: cards.get_offload(sock, interface, number)
                        for name, number in cards.GET.items()}
        # Without the other two the kernel copies what it was asked to send without copying.
        assert offloads == {"sg": 1, "tx-checksumming": 1, "tso": 0}, interface


@pytest.fixture
def peer(segmentation_off):
    """A process behind the far card. Made before the test's loop, of which it knows nothing."""
    with Peer(os.environ[cards.PEER_NAMESPACE]) as made:
        yield made
