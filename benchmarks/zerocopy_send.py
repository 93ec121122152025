"""Sending without a copy: ``python -m benchmarks.zerocopy_send``.

bulk/loopback/1m
    Writes of 1 MiB ``bytes``; the receiver copies them and looks at both ends of each piece. The
    kernel copies here whatever it is asked, so zero copy can only lose: ``auto`` has to notice it,
    and to cost no more than ``copy`` and uvloop.
bulk/veth/64k, bulk/veth/256k, bulk/veth/1m
    Between two network namespaces over veth, zero copy forced, against a sender in C that does the
    same (native/czerocopy.c). The receiver truncates, as the kernel's own msg_zerocopy test does.
latency/loopback/256k
    Small requests on a connection on which the server sends 256 KiB after every 8th answer, so that
    zero-copy sends are nearly always under way.

One process per sample, sides interleaved, ratios within a round: as in README.md. The namespaces
are made here and vanish with this process; without root the cases that need them are left out, and
a line says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from . import build, namespaces, report
from .arguments import count, positive
from .cases import GIB, MIB, Case, select
from .runner import Result
from .sample import Place, Setting, default_cpus
from .servers.zerocopy import EVERY, MESSAGE_BYTES
from .session import Session
from .sides import Side
from .targets import Target
from .terminal import Console


def _zcloop(mode: str, **more: str) -> Side:
    return Side(mode, "zcloop:new_event_loop", {"ZCLOOP_SEND": mode} | more)


SIDES = {
    side.name: side
    for side in (
        Side("uvloop", "uvloop:new_event_loop"),
        _zcloop("copy"),
        _zcloop("auto"),
        # Forced: also below the size from which zcloop does it by itself.
        _zcloop("zerocopy", ZCLOOP_ZEROCOPY_THRESHOLD="32768"),
        _zcloop("pages"),
        Side("c-zerocopy", "", program=("czerocopy",)),
        Side("c-copy", "", program=("czerocopy", "copy")),
    )
}


def _bulk(where: str, name: str, size: int, load: str, sides: tuple[str, ...]) -> Case:
    return Case(
        id=f"bulk/{where}/{name}",
        kind="source-host",
        load=(load, "--period", str(size)),
        unit="GiB",
        unit_size=GIB,
        size=size,
        sides=sides,
    )


def _latency(name: str, size: int) -> Case:
    return Case(
        id=f"latency/loopback/{name}",
        kind="mixed",
        load=(
            *("mixed", "--size", str(MESSAGE_BYTES), "--every", str(EVERY)),
            *("--transfer", str(size), "--period", str(size)),
        ),
        size=size,
        sides=("copy", "auto", "zerocopy", "uvloop"),
    )


_VETH_SIDES = ("c-zerocopy", "zerocopy", "pages", "c-copy", "copy", "auto")
CASES = (
    _bulk("loopback", "1m", MIB, "source", ("copy", "auto", "zerocopy", "pages", "uvloop")),
    _bulk("veth", "64k", 64 << 10, "discard", _VETH_SIDES),
    _bulk("veth", "256k", 256 << 10, "discard", _VETH_SIDES),
    _bulk("veth", "1m", MIB, "discard", _VETH_SIDES),
    _latency("256k", 256 << 10),
)

_AUTO = ("bulk/loopback/1m", "auto")
TARGETS = (
    *(
        Target(_AUTO[0], metric, relation, bound, side=_AUTO[1], base=base)
        for base in ("copy", "uvloop")
        for metric, relation, bound in (("rate", ">=", 0.98), ("cpu", "<=", 1.03))
    ),
    *(
        Target(f"bulk/veth/{size}", "rate", ">=", 0.90, side="zerocopy", base="c-zerocopy")
        for size in ("64k", "256k", "1m")
    ),
    Target("latency/loopback/256k", "p99", "<=", 1.20, side="zerocopy", base="copy"),
    Target("latency/loopback/256k", "p99", "<=", 1.20, side="auto", base="copy"),
)
NOTIFIED_CASES = ("bulk/veth/64k", "bulk/veth/256k")
NOTIFIED_MAX = 0.1
"""Notifications reaped per zero-copy send, at most. Not of 1 MiB, of which few fit into the socket:
there the C sender too reads one for every three."""


@dataclass(frozen=True)
class Counts:
    """What a sender counted in one sample: zero-copy sends, notifications read (each is of a range
    of sends), sends that the kernel copied after all, sends refused for want of memory."""

    sends: int
    notifications: int
    copied: int
    enobufs: int


def counts(sample: dict[str, Any]) -> Counts | None:
    """None for a sender without zero copy, and for one that made no such send."""
    ended = sample.get("server_exit", {})
    found = ended.get("zerocopy")
    if found is None:
        stats = ended.get("stats", {}).get("totals", {})
        found = {
            "sends": stats.get("zerocopy_sends", 0),
            "notifications": stats.get("zerocopy_notices", 0),
            "copied": stats.get("zerocopy_copied", 0),
            "enobufs": stats.get("zerocopy_fallback_enobufs", 0),
        }
    known = Counts(found["sends"], found["notifications"], found["copied"], found["enobufs"])
    return known if known.sends else None


def notified(samples: list[dict[str, Any]]) -> float | None:
    """Notifications per zero-copy send: the median of the samples."""
    known = [c.notifications / c.sends for c in map(counts, samples) if c]
    return median(known) if known else None


def count_lines(result: Result) -> list[str]:
    """What the sides counted, one line each."""
    lines = []
    for side, samples in result.samples.items():
        known = [c for c in map(counts, samples) if c]
        if not known:
            continue
        sends = sum(c.sends for c in known)
        text = (
            f"{side}: {sends / len(known):,.0f} zero-copy sends a sample, "
            f"{sum(c.copied for c in known) / sends:.0%} of them copied by the kernel, "
            f"{notified(samples):.3f} notifications a send"
        )
        if enobufs := sum(c.enobufs for c in known):
            text += f", {enobufs} refused for want of memory"
        lines.append(text)
    return lines


def notified_verdict(case: str, finished: list[Result]) -> tuple[str, bool]:
    """The target for notifications as a line, and whether it is met."""
    samples = [result.samples.get("zerocopy", []) for result in finished if result.case.id == case]
    share = notified(samples[0]) if samples else None
    met = share is not None and share <= NOTIFIED_MAX
    measured = "not measured" if share is None else f"{share:.3f}: {'met' if met else 'missed'}"
    return f"{case}: notifications per zero-copy send, target <= {NOTIFIED_MAX}: {measured}", met


@contextmanager
def placed(setting: Setting, cases: list[Case]) -> Iterator[dict[str, Setting]]:
    """The setting for the cases of each network; a network that can't be had is missing."""
    known = {"loopback": setting}
    if not any("/veth/" in case.id for case in cases) or namespaces.why_not():
        yield known
        return
    with namespaces.veth() as (sender, receiver):
        place = Place(sender.address, sender.enter, receiver.enter)
        yield known | {"veth": replace(setting, place=place)}


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zerocopy_send", description="Sending without a copy, compared."
    )
    parser.add_argument("--only", action="append", metavar="CASE", help="by id, or its beginning")
    parser.add_argument("--sides", metavar="A,B", help=f"of {', '.join(SIDES)}")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--seconds", type=positive, default=2.0)
    parser.add_argument("--warmup", type=float, default=0.3)
    parser.add_argument("--json", type=Path, metavar="OUT", help="raw data also to this file")
    parser.add_argument("--strict", action="store_true", help="status 1 unless all targets are met")
    return parser.parse_args(arguments)


def _choose(options: argparse.Namespace) -> list[Case]:
    cases = select(list(CASES), options.only or ["*"])
    if options.sides:
        wanted = options.sides.split(",")
        cases = [
            replace(case, sides=tuple(side for side in case.sides if side in wanted))
            for case in cases
        ]
    return [case for case in cases if case.sides]


def _print_case(console: Console, result: Result) -> None:
    if console.is_terminal:
        report.print_passing(console)
    console.print(report.case_table(result, result.case.sides[0]))
    for line in [*count_lines(result), *report.notes(result, {})]:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> int:
    options = _arguments(arguments)
    console = report.console()
    cases = _choose(options)
    if not cases:
        print("no case matches; there are:", *(case.id for case in CASES), file=sys.stderr)
        return 2
    try:
        build.loadgen()
        build.c_server("czerocopy")
    except build.BuildError as error:
        print(error, file=sys.stderr)
        return 2
    setting = Setting(options.seconds, options.warmup, default_cpus())
    session = Session(console, options.rounds, setting, options.json, "zerocopy-send-")
    with placed(setting, cases) as settings:
        for case in cases:
            network = case.id.split("/")[1]
            if network not in settings:
                console.print(f"{case.id}: not measured: {namespaces.why_not()}", markup=False)
                continue
            sides = [SIDES[name] for name in case.sides]
            _print_case(console, session.measure(case, sides, settings[network]))
    session.end()
    return _conclude(console, options, cases, session.finished)


def _conclude(
    console: Console, options: argparse.Namespace, cases: list[Case], finished: list[Result]
) -> int:
    chosen = {case.id: case.sides for case in cases}
    targets = [
        target
        for target in TARGETS
        if {target.side, target.base} <= set(chosen.get(target.case, ()))
    ]
    table, failed = report.gate_table(finished, targets)
    console.print(table)
    for case in NOTIFIED_CASES:
        if "zerocopy" in chosen.get(case, ()):
            line, met = notified_verdict(case, finished)
            failed += not met
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 1 if options.strict and failed else 0


if __name__ == "__main__":
    sys.exit(main())
