"""Two network namespaces joined by a veth pair: a route with an MTU of its own, on one machine.

Needs root (or CAP_SYS_ADMIN and CAP_NET_ADMIN) and iproute2. What is made is removed, whatever
happens to the run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

RECEIVER, SENDER = "10.213.0.1", "10.213.0.2"


class NamespaceError(Exception):
    """It can't be made here; the message says why."""


@dataclass(frozen=True)
class Route:
    """Where the two ends run, and the address to connect to."""

    host: str
    receiver: tuple[str, ...] = ()  # put before the command
    sender: tuple[str, ...] = ()


LOOPBACK = Route("127.0.0.1")


def _ip(*words: str) -> None:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
    except FileNotFoundError:
        raise NamespaceError("network namespaces need the program ip (package iproute2)") from None
    if done.returncode:
        raise NamespaceError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def veth(mtu: int) -> Iterator[Route]:
    """A pair with this MTU.

    Raises:
        NamespaceError: not root, no iproute2, or the kernel refused.
    """
    if os.geteuid() != 0:
        raise NamespaceError("network namespaces need root")
    names = [f"zcref{os.getpid()}{end}" for end in "rs"]
    made = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        pair = ["link", "add", "zc0", "netns", names[0], "type", "veth"]
        _ip(*pair, "peer", "name", "zc0", "netns", names[1])
        for name, address in zip(names, (RECEIVER, SENDER), strict=True):
            _ip("-n", name, "address", "add", f"{address}/30", "dev", "zc0")
            _ip("-n", name, "link", "set", "zc0", "mtu", str(mtu), "up")
            _ip("-n", name, "link", "set", "lo", "up")
        enter = [("ip", "netns", "exec", name) for name in names]
        yield Route(RECEIVER, *enter)
    finally:
        for name in made:
            # The pair goes with its namespaces, once the last process in them has ended.
            subprocess.run(["ip", "netns", "delete", name], check=False)
