"""CPython's `test.test_asyncio`, with its loops taken from a factory of our choice.

The suite makes loops in three ways, and each needs another handle:

* `asyncio.new_event_loop()`, `asyncio.run()`, `IsolatedAsyncioTestCase`: they ask the event loop
  policy. Every module resets that with `set_event_loop_policy(None)`, which makes asyncio look up
  `asyncio.DefaultEventLoopPolicy` again: so that name is what we replace.
* a hook that a mixin leaves open (`create_event_loop`, `new_loop`) and its subclasses fill with a
  selector, one class per selector. One of them gets the factory (`HOOKS`), the siblings would only
  run the same tests again (`SIBLINGS`).
* a class of asyncio itself, because that class is what the test is about (`OWN_LOOPS`).

A class that makes its loops in none of these ways would silently test stock asyncio, so the worker
counts the loops of both kinds and `verdict` rejects it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import pkgutil
import unittest
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any

PACKAGE = "test.test_asyncio."

# Longest first: with two workers the last module decides when the run ends.
MODULES = (
    "test_ssl",
    "test_tasks",
    "test_subprocess",
    "test_events",
    "test_sslproto",
    "test_sendfile",
    "test_streams",
    "test_runners",
    "test_unix_events",
    "test_base_events",
    "test_sock_lowlevel",
    "test_server",
    "test_buffered_proto",
    "test_eager_task_factory",  # 3.12
    "test_staggered",  # 3.13
    "test_taskgroups",
    "test_timeouts",
    "test_waitfor",
    "test_threads",
    "test_context",
    "test_locks",
    "test_queues",
    "test_futures",
    "test_futures2",
    "test_pep492",
    "test_protocols",
    "test_transports",
)

# Private parts of asyncio's own loops, and of loops for another system.
LEFT_OUT = frozenset(
    {"test_proactor_events", "test_selector_events", "test_windows_events", "test_windows_utils"}
)

# module -> {class: its hook that returns a loop}
HOOKS = {
    "test_events": {"EPollEventLoopTests": "create_event_loop"},
    "test_sock_lowlevel": {"EPollEventLoopTests": "create_event_loop"},
    "test_sendfile": {"EPollEventLoopTests": "create_event_loop"},
    "test_buffered_proto": {"BufferedProtocolSelectorTests": "new_loop"},
    "test_server": {"SelectorStartServerTests": "new_loop"},
    "test_sslproto": {"SelectorStartTLSTests": "new_loop"},
}

SIBLINGS = frozenset(
    {
        "PollEventLoopTests",
        "SelectEventLoopTests",
        "KqueueEventLoopTests",
        "ProactorEventLoopTests",
        "ProactorStartServerTests",
        "BufferedProtocolProactorTests",
        "ProactorStartTLSTests",
    }
)

# Test ids (patterns) whose subject is one of asyncio's own loop classes.
OWN_LOOPS = (
    "test_base_events.BaseEventLoopWithSelectorTests.*",
    "test_unix_events.SelectorEventLoopSignalTests.*",
    "test_unix_events.SelectorEventLoopUnixSocketTests.*",
    "test_runners.RunTests.test_loop_factory_default_event_loop",
)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def resolve(path: str) -> LoopFactory:
    """The callable at `package.module:attribute`.

    Raises ValueError for another form, ImportError or AttributeError when there is no such thing.
    """
    module, colon, attributes = path.partition(":")
    if not (module and colon and attributes):
        raise ValueError(f"{path!r} is not of the form package.module:attribute")
    found: Any = importlib.import_module(module)
    for name in attributes.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise ValueError(f"{path!r} is not callable")
    return found  # type: ignore[no-any-return]


def present_modules() -> list[str]:
    """The modules of this Python's suite, without LEFT_OUT: MODULES, then any that are newer.

    Raises ModuleNotFoundError where the `test` package isn't installed (some distributions).
    """
    package = importlib.import_module(PACKAGE.rstrip("."))
    found = {module.name for module in pkgutil.iter_modules(package.__path__)}
    newer = {n for n in found if n.startswith("test_")} - LEFT_OUT - set(MODULES)
    return [name for name in MODULES if name in found] + sorted(newer)


class Suite:
    """The suite inside one process, its loops counted.

    `loops` were made by the factory, `own_loops` are instances of asyncio's own classes.
    """

    def __init__(self, factory: LoopFactory) -> None:
        self.loops = 0
        self.own_loops = 0
        self._factory = factory
        self._install_policy()
        self._count_own_loops()
        _accept_foreign_executor()

    def new_loop(self) -> asyncio.AbstractEventLoop:
        self.loops += 1
        return self._factory()

    def load(self, name: str) -> ModuleType:
        """Import a module of the suite (a dotted name is taken as it is) and fill its hooks.

        Raises AttributeError if this CPython renamed a class that HOOKS names.
        """
        module = importlib.import_module(name if "." in name else PACKAGE + name)
        for class_name, hook in HOOKS.get(name, {}).items():
            setattr(getattr(module, class_name), hook, lambda test: self.new_loop())
        return module

    def _install_policy(self) -> None:
        suite = self

        class FactoryPolicy(asyncio.DefaultEventLoopPolicy):  # keeps the child watchers
            def new_event_loop(self) -> asyncio.AbstractEventLoop:
                return suite.new_loop()

        asyncio.DefaultEventLoopPolicy = FactoryPolicy
        asyncio.set_event_loop_policy(None)

    def _count_own_loops(self) -> None:
        cls: Any = asyncio.SelectorEventLoop
        original = cls.__init__

        @functools.wraps(original)
        def init(loop: asyncio.SelectorEventLoop, *args: Any) -> None:
            self.own_loops += 1
            original(loop, *args)

        cls.__init__ = init


def _accept_foreign_executor() -> None:
    """`loop._default_executor` is the one private name that the suite's base class uses."""
    base = importlib.import_module(PACKAGE + "utils").TestCase
    original = base.close_loop

    def close_loop(loop: asyncio.AbstractEventLoop) -> None:
        if hasattr(loop, "_default_executor"):
            original(loop)
            return
        if not loop.is_closed():
            loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    base.close_loop = staticmethod(close_loop)


def test_classes(module: ModuleType) -> Iterator[tuple[str, type[unittest.TestCase]]]:
    """The (name, class) pairs that `module` defines, without SIBLINGS."""
    for name, found in vars(module).items():
        if not (isinstance(found, type) and issubclass(found, unittest.TestCase)):
            continue
        if found.__module__ == module.__name__ and name not in SIBLINGS:
            yield name, found


def test_ids(name: str, module: ModuleType) -> Iterator[str]:
    """`module.Class.test` for each test in `module`, in the order in which they run."""
    loader = unittest.TestLoader()
    for class_name, found in test_classes(module):
        for test in loader.getTestCaseNames(found):
            yield f"{name}.{class_name}.{test}"


def makes_own_loops(test_id: str) -> bool:
    """True if the test is about one of asyncio's own loop classes."""
    return any(fnmatchcase(test_id, pattern) for pattern in OWN_LOOPS)
