"""Two network namespaces joined by a veth pair, for as long as a ``with`` block.

Each namespace belongs to a process that waits for the end of its standard input, and has no name:
it is gone with that process, and the veth pair with it, also when this one is killed. It needs
root, and the programs of iproute2 and util-linux.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

TOOLS = ("ip", "nsenter", "unshare")


@dataclass(frozen=True)
class Namespace:
    """One of the two: what to put before a command to run it there, and its IPv4 address."""

    enter: tuple[str, ...]
    address: str


def why_not() -> str | None:
    """The reason why there can be no namespaces here."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not found: {', '.join(missing)} (packages iproute2 and util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr.strip()


def _hold(stack: ExitStack) -> int:
    """A process with a network namespace of its own, which ends with `stack`; its id."""
    command = ["unshare", "--net", "sh", "-c", "echo ready && exec cat"]
    pipe = subprocess.PIPE
    process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
    assert process.stdin
    assert process.stdout
    stack.callback(process.stdin.close)
    if process.stdout.readline() != "ready\n":
        raise OSError("unshare --net failed")
    return process.pid


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def veth(mtu: int = 1500) -> Iterator[tuple[Namespace, Namespace]]:
    """Raises:
    OSError: a command failed; `why_not` may know why.
    """
    with ExitStack() as stack:
        holders = (_hold(stack), _hold(stack))
        ends = (("zcbench0", "192.0.2.1"), ("zcbench1", "192.0.2.2"))
        peer = ("peer", "name", ends[1][0], "netns", str(holders[1]))
        _run("ip", "link", "add", ends[0][0], "netns", str(holders[0]), "type", "veth", *peer)
        spaces = []
        for holder, (device, address) in zip(holders, ends, strict=True):
            enter = ("nsenter", f"--net=/proc/{holder}/ns/net")
            _run(*enter, "ip", "addr", "add", f"{address}/30", "dev", device)
            _run(*enter, "ip", "link", "set", device, "mtu", str(mtu), "up")
            _run(*enter, "ip", "link", "set", "lo", "up")
            spaces.append(Namespace(enter, address))
        yield spaces[0], spaces[1]
