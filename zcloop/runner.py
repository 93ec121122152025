"""Ways to get a zcloop loop running: run, factory, policy."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

from .config import Config
from .loop import EventLoop

__all__ = ["install", "new_event_loop", "run"]

_T = TypeVar("_T")


def new_event_loop(config: Config | None = None) -> EventLoop:
    """A new loop; a ``loop_factory`` for :class:`asyncio.Runner` and for servers."""
    return EventLoop(config)


def run(
    main: Coroutine[Any, Any, _T], *, debug: bool | None = None, config: Config | None = None
) -> _T:
    """Run a coroutine on a new loop, as :func:`asyncio.run` does; returns its result.

    Raises :exc:`RuntimeError` when a loop is running in this thread, and what
    the coroutine raises.
    """
    if asyncio._get_running_loop() is not None:
        # The Runner says the same, but after a loop was made.
        if asyncio.iscoroutine(main):
            main.close()
        raise RuntimeError("zcloop.run() cannot be called from a running event loop")
    if config is None:
        try:
            config = Config.from_env()
        except ValueError:
            if asyncio.iscoroutine(main):
                main.close()
            raise
    with asyncio.Runner(debug=debug, loop_factory=lambda: EventLoop(config)) as runner:
        return runner.run(main)


def _warn_policy(what: str) -> None:
    if sys.version_info >= (3, 12):
        warnings.warn(
            f"{what} is deprecated as asyncio's policies are; "
            "use zcloop.run() or asyncio.Runner(loop_factory=zcloop.new_event_loop)",
            DeprecationWarning,
            stacklevel=3,
        )


def __getattr__(name: str) -> Any:
    # Made on first use: CPython deprecates the policy base class, and drops it in 3.16.
    if name == "EventLoopPolicy":
        return _policy_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _policy_class() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        base: Any = getattr(asyncio, "DefaultEventLoopPolicy", None)
    if base is None:
        raise AttributeError("this Python has no event loop policies; use zcloop.run()")
    cached = globals().get("_policy")
    if cached is not None:
        return cached

    class EventLoopPolicy(base):  # type: ignore[misc]
        """The standard policy, whose new loops are zcloop's."""

        def __init__(self) -> None:
            _warn_policy("zcloop.EventLoopPolicy")
            super().__init__()

        def _loop_factory(self) -> EventLoop:
            return EventLoop()

        def new_event_loop(self) -> EventLoop:
            """A new zcloop loop."""
            return EventLoop()

    EventLoopPolicy.__module__ = "zcloop"
    EventLoopPolicy.__qualname__ = "EventLoopPolicy"
    globals()["_policy"] = EventLoopPolicy
    return EventLoopPolicy


def install() -> None:
    """Make zcloop the process's policy, for programs that can't take a loop factory."""
    _warn_policy("zcloop.install()")
    policy = _policy_class()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.set_event_loop_policy(policy())
