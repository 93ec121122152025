"""``python -m zcloop``: what a person at a terminal can ask for.

Every failure that has a known cause ends with one sentence on standard error, which
names the cause and the remedy, and status 1 (2 for a command line that isn't one).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence

from . import doctor
from .config import Config
from .demo import options as demo_options

__all__ = ["main"]

_DESCRIPTION = """\
zcloop is an asyncio event loop for Linux. Programs use it with zcloop.run();
these commands let you look at it.
"""

_DEMO = """\
Starts a small web application (aiohttp) on this machine and prints its address.
Open it in a browser: upload a file or generated data, download it back, and watch
throughput, CPU and wake-ups; switch between asyncio, uvloop and zcloop to compare.
Files are kept in a temporary folder, which is removed when the demo ends (Ctrl-C).
"""

_DOCTOR = """\
Prints versions, the configuration that the ZCLOOP_* variables ask for, and what this
kernel can do, as tried just now. Status 1 if the configuration is wrong.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    chosen = _parser().parse_args(arguments)
    if chosen.command == "doctor":
        try:
            status = doctor.report(sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:  # whoever read it has seen enough, as `head` has
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return status
    return _demo(chosen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m zcloop",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"zcloop {importlib.metadata.version('zcloop')}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo = commands.add_parser(
        "demo",
        help="a web page that shows the loops at work, side by side",
        description=_DEMO,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo_options.add_arguments(demo)
    commands.add_parser(
        "doctor",
        help="what zcloop finds here: versions, configuration, kernel features",
        description=_DOCTOR,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def _demo(chosen: argparse.Namespace) -> int:
    if importlib.util.find_spec("aiohttp") is None:
        return _fail("the demo needs aiohttp, which isn't installed: pip install 'zcloop[demo]'")
    try:
        Config.from_env()
    except ValueError as exc:
        return _fail(str(exc))
    from .demo.supervisor import StartError, serve

    try:
        return serve(demo_options.from_arguments(chosen))
    except StartError as exc:
        return _fail(str(exc))


def _fail(reason: str) -> int:
    print(f"zcloop: {reason}", file=sys.stderr)
    return 1
