"""zcloop: an asyncio event loop for Linux that copies less and wakes up less."""

from __future__ import annotations

import sys
from typing import Any

if sys.platform != "linux":
    raise ImportError(
        f"zcloop runs on Linux only (this is {sys.platform}): it is built on epoll and on "
        "Linux's TCP options; use asyncio or uvloop here"
    )

from .capabilities import capabilities
from .config import Config
from .loop import EventLoop
from .pages import PageBuffer, PagesProtocol
from .runner import install, new_event_loop, run
from .streams import StreamReader, StreamWriter, open_connection, start_server

__version__ = "0.1.0"

__all__ = [
    "Config",
    "EventLoop",
    "EventLoopPolicy",
    "PageBuffer",
    "PagesProtocol",
    "StreamReader",
    "StreamWriter",
    "capabilities",
    "install",
    "new_event_loop",
    "open_connection",
    "run",
    "start_server",
]


def __getattr__(name: str) -> Any:
    if name == "EventLoopPolicy":
        from .runner import _policy_class

        return _policy_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
