"""The public names, and nothing else."""
import importlib
import subprocess
import sys
import types

import pytest

import zcloop

PUBLIC = {
    "Config", "EventLoop", "EventLoopPolicy", "PageBuffer", "PagesProtocol", "StreamReader",
    "StreamWriter", "capabilities", "install", "new_event_loop", "open_connection", "run",
    "start_server",
}


def test_all_is_the_public_list():
    assert set(zcloop.__all__) == PUBLIC
    assert len(zcloop.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_name_is_there(name):
    assert getattr(zcloop, name) is not None


def test_nothing_else_is_public():
    extra = {name for name, value in vars(zcloop).items()
             if not name.startswith("_") and not isinstance(value, types.ModuleType)} - PUBLIC
    assert extra <= {"annotations", "Any"}, extra       # typing aids of the module itself


def test_star_import():
    namespace = {}
    exec("from zcloop import *", namespace)
    assert set(namespace) - {"__builtins__"} == PUBLIC


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        assert zcloop.nonsense


def test_version():
    assert zcloop.__version__.count(".") == 2


def test_the_loop_class():
    import uvloop
    assert issubclass(zcloop.EventLoop, uvloop.Loop)
    assert zcloop.EventLoop.__module__.startswith("zcloop")


CONTRIB = {"aiohttp": {"iter_body", "read_body_into", "read_body_view", "run_app"}}


@pytest.mark.parametrize("name", CONTRIB)
def test_contrib(name):
    """What zcloop.contrib offers, by module; nothing of it is imported with zcloop."""
    module = importlib.import_module(f"zcloop.contrib.{name}")
    assert set(module.__all__) == CONTRIB[name]
    assert all(getattr(module, each).__doc__ for each in module.__all__)
    code = ("import sys, zcloop;"
            "assert not [m for m in sys.modules if m.startswith(('zcloop.contrib', 'aiohttp'))]")
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_import_has_no_side_effects():
    """No policy set, no thread, no descriptor, no warning."""
    code = ("import asyncio, os, sys, threading, uvloop, cffi;"
            "fds = len(os.listdir('/proc/self/fd'));"
            "import zcloop;"
            "assert len(os.listdir('/proc/self/fd')) == fds;"
            "assert threading.active_count() == 1;"
            "loop = asyncio.new_event_loop();"
            "assert type(loop) is asyncio.SelectorEventLoop;"
            "loop.close()")
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
