"""The methods that are borrowed from asyncio find on our loop all that they look for on theirs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from asyncio import base_events, selector_events, unix_events

import pytest

import zcloop
from zcloop.stdlib import BORROWED

# Read only where they are optional or only on ways that our hooks replace.
NOT_NEEDED: dict[str, str] = {}

METHODS = [(owner, name) for owner, names in BORROWED.items() for name in names]


def attributes_of_self(function):
    """The names that a function's source reads as ``self.NAME``."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    argument = tree.body[0].args.args[0].arg
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == argument
    }


@pytest.mark.parametrize(("owner", "name"), METHODS, ids=[name for _, name in METHODS])
def test_everything_a_borrowed_method_reads_is_there(owner, name):
    loop = zcloop.new_event_loop()
    try:
        needed = attributes_of_self(getattr(owner, name)) - NOT_NEEDED.keys()
        assert not sorted(attr for attr in needed if not hasattr(loop, attr))
    finally:
        loop.close()


@pytest.mark.parametrize(("owner", "name"), METHODS, ids=[name for _, name in METHODS])
def test_a_borrowed_method_is_the_one_that_runs(owner, name):
    """Unless the loop overrides it on purpose, and then it calls the borrowed one."""
    overridden = {"_create_connection_transport"}
    if name in overridden:
        assert name in vars(zcloop.EventLoop)
        assert f"StdlibMethods.{name}" in inspect.getsource(getattr(zcloop.EventLoop, name))
    else:
        assert getattr(zcloop.EventLoop, name) is owner.__dict__[name]


def test_the_server_of_this_python_is_used():
    """Servers are asyncio's: what it calls on the loop is there, too."""
    methods = [m for m in vars(base_events.Server).values() if inspect.isfunction(m)]
    called = set()
    for method in methods:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
        called |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "_loop"
        }
    assert {"_start_serving", "_stop_serving"} <= called
    loop = zcloop.new_event_loop()
    try:
        assert not sorted(attr for attr in called if not hasattr(loop, attr))
    finally:
        loop.close()


def test_modules_are_the_ones_borrowed_from():
    assert {owner.__module__ for owner in BORROWED} == {
        module.__name__ for module in (base_events, selector_events, unix_events)
    }
