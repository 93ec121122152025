"""What is compared: each side is a loop factory and an environment; the server code is one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field, replace

BASE = "uvloop"


@dataclass(frozen=True)
class Side:
    """`factory` is as `benchmarks.servers.main.loop_factory` reads it; empty: a bare C server, of
    which `program` is the name that `benchmarks.build` knows it by, and its arguments after the
    size."""

    name: str
    factory: str
    env: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ()


SIDES = {
    side.name: side
    for side in (
        Side("asyncio", "asyncio:new_event_loop"),
        Side("uvloop", "uvloop:new_event_loop"),
        Side("rloop", "rloop:new_event_loop"),
        # It replaces the transports of another loop; on uvloop it is at its best.
        Side("aiofastnet", "aiofastnet:loop_factory(uvloop:new_event_loop)"),
        Side("zcloop", "zcloop:new_event_loop"),
        Side("zcloop:nopoll", "zcloop:new_event_loop", {"ZCLOOP_BUSY_POLL": "off"}),
        Side("c-epoll", "", program=("cecho",)),
    )
}


def why_unsuited(side: Side, case_kind: str) -> str | None:
    """The reason why the side can't serve this kind of case."""
    if not side.factory and not case_kind.startswith("echo-"):
        return "the C server only echoes"
    return None


def parse_side(text: str) -> Side:
    """``name`` or ``name+KEY=VALUE+KEY=VALUE``: the side with environment variables of its own.

    Raises:
        ValueError: no such side, or a setting without ``=``.
    """
    name, *settings = text.split("+")
    if name not in SIDES:
        raise ValueError(f"unknown side {name!r}; known: {', '.join(SIDES)}")
    env = dict(SIDES[name].env)
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{text!r}: {setting!r} is not KEY=VALUE")
        env[key] = value
    return replace(SIDES[name], name=text, env=env)


_PROBE = """
import sys
sys.path.append(sys.argv[1])
from benchmarks.servers.main import loop_factory
loop_factory(sys.argv[2])().close()
"""


def why_missing(side: Side, root: str) -> str | None:
    """The reason why the side has no loop to offer here, asked of a process like the servers."""
    if not side.factory:
        return None
    command = [sys.executable, "-P", "-c", _PROBE, root, side.factory]
    env = {**os.environ, **side.env}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
