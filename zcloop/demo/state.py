"""What the handlers of one worker share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from aiohttp import web

from .feed import Feed
from .meter import Meter
from .storage import Storage

__all__ = ["STATE", "State"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """``generation`` counts the workers; ``switch`` asks the parent for another one."""

    loop_name: str
    generation: int
    storage: Storage
    meter: Meter
    feed: Feed
    switch: Callable[[str], None]


STATE = web.AppKey("state", State)
