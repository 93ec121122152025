"""Every test here maps where it can, and knows nothing of what others learned of loopback."""
import pytest

from zcloop import mapping


@pytest.fixture(autouse=True)
def mapped(monkeypatch):
    monkeypatch.setenv("ZCLOOP_RECEIVE", "map")
    monkeypatch.setattr(mapping, "_routes", mapping._routes.__class__())
