"""zcloop.run, new_event_loop, install and the policy."""
import asyncio
import subprocess
import sys
import warnings

import pytest

import zcloop

DEPRECATED = sys.version_info >= (3, 12)
HAS_POLICIES = sys.version_info < (3, 16)
policies = pytest.mark.skipif(not HAS_POLICIES, reason="CPython 3.16 has no policies")


def test_run():
    async def main():
        assert type(asyncio.get_running_loop()) is zcloop.EventLoop
        return 42
    assert zcloop.run(main()) == 42


def test_run_passes_exceptions_on():
    async def main():
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        zcloop.run(main())


@pytest.mark.parametrize("debug", [True, False])
def test_run_debug(debug):
    async def main():
        return asyncio.get_running_loop().get_debug()
    assert zcloop.run(main(), debug=debug) is debug


def test_run_config():
    async def main():
        return asyncio.get_running_loop()
    assert zcloop.run(main(), config=zcloop.Config(busy_poll="off")).is_closed()


def test_run_cancels_what_is_left():
    cancelled = []

    async def forever():
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def main():
        task = asyncio.ensure_future(forever())
        await asyncio.sleep(0)
        return task
    assert zcloop.run(main()).cancelled()
    assert cancelled == [True]


def test_run_inside_a_loop_is_refused():
    async def inner():
        raise AssertionError("never runs")

    async def main():
        zcloop.run(inner())
    with pytest.raises(RuntimeError, match="running event loop"):
        zcloop.run(main())


@pytest.mark.parametrize("wrong", [None, 5, lambda: None])
def test_run_wants_a_coroutine(wrong):
    with pytest.raises((TypeError, ValueError), match="coroutine"):
        zcloop.run(wrong)


def test_keyword_only():
    coroutine = asyncio.sleep(0)
    with pytest.raises(TypeError):
        zcloop.run(coroutine, True)
    coroutine.close()


def test_loop_factory():
    with asyncio.Runner(loop_factory=zcloop.new_event_loop) as runner:
        assert type(runner.get_loop()) is zcloop.EventLoop


def test_sigint_interrupts_run():
    """Ctrl-C: KeyboardInterrupt leaves run(), after the task's clean-up."""
    code = """
import asyncio, os, signal, zcloop
async def main():
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        print("cleaned up")
try:
    zcloop.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""
    out = subprocess.run([sys.executable, "-W", "error", "-c", code],
                         capture_output=True, text=True)
    assert out.stdout.split("\n")[:2] == ["cleaned up", "interrupted"], out.stderr


@policies
def test_install_and_policy():
    """In a process of its own: the policy is global."""
    code = """
import asyncio, sys, warnings, zcloop
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    zcloop.install()
assert [w.category for w in caught] == [DeprecationWarning] * (sys.version_info >= (3, 12)), caught
assert all(w.filename == "<string>" for w in caught), caught
warnings.simplefilter("ignore", DeprecationWarning)
assert type(asyncio.get_event_loop_policy()) is zcloop.EventLoopPolicy
async def main():
    return type(asyncio.get_running_loop())
assert asyncio.run(main()) is zcloop.EventLoop
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr


@policies
def test_policy_class():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = zcloop.EventLoopPolicy()
    assert [w.category for w in caught] == [DeprecationWarning] * DEPRECATED
    loop = policy.new_event_loop()
    assert type(loop) is zcloop.EventLoop
    loop.close()
    assert zcloop.EventLoopPolicy is zcloop.EventLoopPolicy
    assert zcloop.EventLoopPolicy.__name__ == "EventLoopPolicy"
