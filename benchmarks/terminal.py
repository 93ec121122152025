"""What the tables are drawn with: rich, or one sentence that says how to have it."""

from __future__ import annotations

try:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
except ModuleNotFoundError:
    raise SystemExit(
        "the benchmarks need rich, which isn't installed: pip install -e '.[bench]'"
    ) from None

__all__ = ["SIMPLE", "Console", "Table"]
