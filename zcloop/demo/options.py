"""The demo's command line; needs nothing that the demo needs."""

from __future__ import annotations

import argparse
import dataclasses
import re

__all__ = ["LOOPS", "Options", "add_arguments", "from_arguments", "parse_size"]

LOOPS = ("asyncio", "uvloop", "zcloop")
DEFAULT_PORT = 8765
FOLDER_FACTOR = 4
"""The folder may hold this many times as much as the largest file."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """``port`` None: the default one, or a free one if that is taken; sizes in bytes."""

    host: str = "127.0.0.1"
    port: int | None = None
    max_size: int = 4 << 30
    loop: str = "zcloop"


def parse_size(text: str) -> int:
    """Bytes from "300", "64M", "1.5GiB"; units are powers of 1024.  Raises :exc:`ValueError`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text!r} is not a size; write 512M or 4G, say")
    size = int(float(found[1]) * _UNITS[found[2].upper()])
    if size < 1:
        raise ValueError(f"{text!r}: the size must be at least one byte")
    return size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``demo``."""
    parser.add_argument(
        "--host",
        default=Options.host,
        metavar="ADDRESS",
        help="address to listen on (default: %(default)s, this machine only; any other lets "
        "others upload to this machine)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        metavar="N",
        help=f"port to listen on (default: {DEFAULT_PORT}, or a free one if that is taken; "
        "0: a free one)",
    )
    parser.add_argument(
        "--max-size",
        type=_size,
        default=Options.max_size,
        metavar="SIZE",
        help=f"largest file accepted, such as 512M (default: 4G); all files together may take "
        f"{FOLDER_FACTOR} times as much",
    )
    parser.add_argument(
        "--loop",
        choices=LOOPS,
        default=Options.loop,
        help="event loop to begin with (default: %(default)s); the page can switch it",
    )


def from_arguments(chosen: argparse.Namespace) -> Options:
    """The options that a command line gave."""
    return Options(host=chosen.host, port=chosen.port, max_size=chosen.max_size, loop=chosen.loop)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; valid are 0 to 65535")
    return int(text)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None
