"""Every test here maps where it can, and knows nothing of what others learned of loopback.

Some share tools with the benchmarks, a package of the source tree.
"""
import sys
from pathlib import Path

import pytest

from zcloop import mapping

# At the end: an installed zcloop is to be found before the tree's.
sys.path.append(str(Path(__file__).parents[2]))


@pytest.fixture(autouse=True)
def mapped(monkeypatch):
    monkeypatch.setenv("ZCLOOP_RECEIVE", "map")
    monkeypatch.setattr(mapping, "_routes", mapping._routes.__class__())
