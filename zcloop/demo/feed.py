"""Samples of the meter for whoever watches; nobody watching, nothing is sampled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

__all__ = ["Feed"]

_INTERVAL = 0.25  # seconds between two samples


class Feed:
    """One sampling task for all watchers; a slow watcher misses samples."""

    def __init__(self, take: Callable[[], dict[str, Any]]) -> None:
        self._take = take
        self._watchers = 0
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[dict[str, Any] | None] | None = None

    async def watch(self) -> AsyncGenerator[dict[str, Any], None]:
        """Each sample from now on, until :meth:`close`."""
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
        if self._task is None:
            self._task = loop.create_task(self._run())
        self._watchers += 1
        try:
            while not self._closed:
                sample = await asyncio.shield(self._next)
                if sample is None:
                    return
                yield sample
        finally:
            self._watchers -= 1
            if not self._watchers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            self._publish(self._take())

    def _publish(self, sample: dict[str, Any] | None) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(sample)
        self._next = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """End every watch."""
        self._closed = True
        self._publish(None)
