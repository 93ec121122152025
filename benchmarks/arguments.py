"""Numbers on the command line: what isn't one of those that make sense is refused by argparse."""

from __future__ import annotations

import argparse
import math

__all__ = ["count", "positive"]


def count(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return number


def positive(text: str) -> float:
    """Seconds, more than none."""
    number = float(text)
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"{text}: a number of seconds above 0")
    return number
