"""Giving a connection of aiohttp's server a new parser, in every version that can be known.

The arguments of a parser can't be read back from it, so they are put together as aiohttp's
``RequestHandler`` does, from what the server was given for it and its own defaults.  Each
kind of parser (written in C or in Python) is rehearsed once: what doesn't do what we rely
on, or takes an argument that we don't know, is left alone, and bodies are read the usual way.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

__all__ = ["exchange_for"]

_KNOWN = {
    "auto_decompress",
    "code",
    "limit",
    "loop",
    "max_field_size",
    "max_headers",
    "max_line_size",
    "max_msg_queue_size",
    "method",
    "payload_exception",
    "protocol",
    "read_until_eof",
    "response_with_body",
    "self",
    "timer",
}
"""What parsers from 3.10 to 3.14 take; a new one might be a limit that we would lift."""

_HEADERS = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n123"
_NEXT = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
_SETTINGS = ("read_bufsize", "auto_decompress", "max_field_size", "max_headers", "max_line_size")
_STATE = ("_close", "_force_close", "_manager", "_messages", "_payload_parser")
_logger = logging.getLogger("zcloop")


def exchange_for(protocol: Any, payload: Any) -> Callable[[Any], None] | None:
    """A function that gives ``protocol`` a new parser, if that can be done in mid-body."""
    known = _aiohttp()
    if known is None or type(payload) is not known.payload_type:
        return None
    if not isinstance(protocol, known.handler_type):
        return None
    if not all(hasattr(protocol, name) for name in _STATE):
        return None
    # Closing, upgraded or holding back: states in which the parser may have bytes that wait.
    if protocol._close or protocol._force_close or protocol._payload_parser is not None:
        return None
    if protocol._messages or getattr(protocol, "_buffer_paused", False):
        return None
    if getattr(protocol, "_upgraded", False) or getattr(protocol, "_upgrade", False):
        return None
    parser = getattr(protocol, known.attribute)
    if type(parser) not in known.parser_types or not known.rehearsed(type(parser), protocol):
        return None
    return partial(known.exchange, known.make(type(parser), protocol, protocol))


@cache
def _aiohttp() -> _Known | None:
    try:
        return _Known()
    except Exception as exc:
        _logger.warning("request bodies are read the usual way: this aiohttp isn't known: %r", exc)
        return None


class _Known:
    """What we know of the aiohttp that is installed; :exc:`LookupError` where we don't."""

    def __init__(self) -> None:
        http_parser = importlib.import_module("aiohttp.http_parser")
        web_protocol = importlib.import_module("aiohttp.web_protocol")
        self.payload_type: Any = importlib.import_module("aiohttp.streams").StreamReader
        self.handler_type: Any = web_protocol.RequestHandler
        self.payload_exception: Any = web_protocol.RequestPayloadError
        self.parser_types = {http_parser.HttpRequestParser, http_parser.HttpRequestParserPy}
        names = [n for n in ("_parser", "_request_parser") if hasattr(self.handler_type, n)]
        if len(names) != 1:
            raise LookupError("where a RequestHandler keeps its parser")
        self.attribute = names[0]
        takes = inspect.signature(http_parser.HttpRequestParserPy.__init__).parameters
        if not takes.keys() <= _KNOWN:
            raise LookupError(f"parser arguments {sorted(takes.keys() - _KNOWN)}")
        self.takes_queue_size = "max_msg_queue_size" in takes
        self.defaults = inspect.signature(self.handler_type.__init__).parameters
        self._rehearsed: dict[type, bool] = {}

    def exchange(self, parser: Any, protocol: Any) -> None:
        """Give it this parser, unless its connection is gone."""
        if getattr(protocol, self.attribute) is not None:
            setattr(protocol, self.attribute, parser)

    def make(self, kind: Any, handler: Any, protocol: Any) -> Any:
        """A parser for ``protocol`` with the settings of ``handler``."""
        given = handler._manager._kwargs
        limit, *others = (given.get(name, self.defaults[name].default) for name in _SETTINGS)
        arguments = dict(zip(_SETTINGS[1:], others, strict=True))
        arguments["payload_exception"] = self.payload_exception
        if self.takes_queue_size:
            arguments["max_msg_queue_size"] = handler._max_msg_queue_size
        return kind(protocol, handler._loop, limit, **arguments)

    def rehearsed(self, kind: type, handler: Any) -> bool:
        """Whether parsers of this kind do what ``body.py`` does with them."""
        if kind not in self._rehearsed:
            try:
                self._rehearsed[kind] = _rehearse(partial(self.make, kind, handler, _Stage()))
            except Exception:
                _logger.warning("request bodies are read the usual way", exc_info=True)
                self._rehearsed[kind] = False
        return self._rehearsed[kind]


class _Stage:
    """As much of a protocol as a parser and a payload ask for."""

    transport = None
    connected = True
    _reading_paused = False

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Nothing is read here."""


def _rehearse(make: Callable[[], Any]) -> bool:
    messages, upgraded, tail = make().feed_data(_NEXT)
    if len(messages) != 1 or upgraded or tail:
        return False
    parser = make()
    ((message, payload),) = parser.feed_data(_HEADERS)[0]
    if message.method != "POST" or payload.total_bytes != 3 or payload._size != 3:
        return False
    if list(payload._buffer) != [b"123"] or payload.is_eof():
        return False
    parser.feed_data(b"\0" * 6)
    if payload.is_eof() or payload.total_bytes != 9:
        return False
    ((message, _),) = parser.feed_data(b"\0" + _NEXT)[0]
    return bool(payload.is_eof() and message.method == "GET" and payload._waiter is None)
