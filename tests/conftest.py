"""What every test runs under: which loops, warnings as errors, and nothing left behind.

A test that takes the `loop_factory` fixture (or is a coroutine function) runs once for each
entry of LOOPS, or of those that its `loops` mark names. A coroutine test runs inside
`asyncio.Runner`; contexts given to the loop's exception handler are collected in the
`loop_errors` fixture, and those that the test did not take out fail it. After every test the
process must have the descriptors and threads it had before.
"""
import asyncio
import gc
import importlib
import inspect
import os
import ssl
import subprocess
import threading
import traceback
import typing
import warnings

import pytest


class Variant(typing.NamedTuple):
    module: str
    debug: bool


LOOPS = {
    "asyncio": Variant("asyncio", False),
    "uvloop": Variant("uvloop", False),
    "zcloop": Variant("zcloop", False),
    "zcloop-debug": Variant("zcloop", True),
}


class LoopFactory:
    """Calling it makes a loop; `name` is the package, `debug` whether debug mode is on."""

    def __init__(self, module, debug):
        self.name = module
        self.debug = debug
        # asyncio.new_event_loop() asks the policy; the class itself is what we mean.
        self._new = (asyncio.SelectorEventLoop if module == "asyncio"
                     else importlib.import_module(module).new_event_loop)

    def __call__(self):
        loop = self._new()
        loop.set_debug(self.debug)
        return loop

    def __repr__(self):
        return f"<LoopFactory {self.name}{' debug' if self.debug else ''}>"


def pytest_addoption(parser):
    parser.addoption("--loops", default=",".join(LOOPS),
                     help=f"comma-separated choice of {', '.join(LOOPS)}")
    parser.addoption("--browser", action="store_true",
                     help="the demo's page too, in Chromium (make test-demo)")
    parser.addoption("--screenshots", metavar="FOLDER",
                     help="with --browser: keep pictures of the page there")


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line(
        "markers", "loops(*names): run the coroutine tests on these entries of LOOPS only")
    config.addinivalue_line(
        "markers", "known_gap(loop, reason, when=True, run=True): strict xfail on that loop")
    for name in config.getoption("--loops").split(","):
        if name not in LOOPS:
            raise pytest.UsageError(f"--loops: {name!r} is not one of {', '.join(LOOPS)}")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    if inspect.iscoroutinefunction(metafunc.function) or "loop_factory" in metafunc.fixturenames:
        if "loop_factory" not in metafunc.fixturenames:
            metafunc.fixturenames.append("loop_factory")
        chosen = metafunc.config.getoption("--loops").split(",")
        only = metafunc.definition.get_closest_marker("loops")
        if only is not None:
            chosen = [name for name in chosen if name in only.args]
        metafunc.parametrize("loop_factory", chosen, indirect=True)


def pytest_collection_modifyitems(items):
    """known_gap marks apply to one loop only, so they become xfail marks once that is known."""
    for item in items:
        chosen = getattr(item, "callspec", None) and item.callspec.params.get("loop_factory")
        for mark in item.iter_markers("known_gap"):
            name, reason = mark.args
            if mark.kwargs.get("when", True) and chosen and LOOPS[chosen].module == name:
                item.add_marker(pytest.mark.xfail(
                    reason=f"{name}: {reason}", strict=True, run=mark.kwargs.get("run", True)))


@pytest.fixture
def loop_factory(request):
    return LoopFactory(*LOOPS[request.param])


@pytest.fixture
def loop_errors():
    """Contexts given to call_exception_handler; a test takes out those it expects."""
    return []


@pytest.fixture(scope="session")
def contexts(tmp_path_factory):
    """(server context, client context) around a self-made certificate for `localhost`."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=cert)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    factory = LoopFactory(*LOOPS[pyfuncitem.callspec.params["loop_factory"]])
    errors = pyfuncitem.funcargs.get("loop_errors", [])
    names = inspect.signature(pyfuncitem.function).parameters
    kwargs = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner(loop_factory=factory, debug=factory.debug) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: errors.append(context))
        try:
            runner.run(pyfuncitem.function(**kwargs))
        except BaseException:
            # What the failed test left open is closed with the loop; its warnings say nothing new.
            warnings.simplefilter("ignore", ResourceWarning)
            raise
    if errors:
        pytest.fail("unexpected calls of the loop's exception handler:\n"
                    + "\n".join(map(describe, errors)), pytrace=False)
    return True


def describe(context):
    exc = context.get("exception")
    return f"{context}\n" + ("".join(traceback.format_exception(exc)) if exc else "")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call":
        item.failed = call.excinfo is not None
    return report


def descriptors():
    """{fd: what it is} of this process. The listing's own descriptor is gone when readlink asks."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            pass
    return found


@pytest.fixture(scope="session", autouse=True)
def warm_up(pytestconfig):
    """What a loop opens once for the process must not look like a leak of the first test."""
    async def echo():
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await reader.read()
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    for name in pytestconfig.getoption("--loops").split(","):
        with asyncio.Runner(loop_factory=LoopFactory(*LOOPS[name])) as runner:
            runner.run(echo())


@pytest.fixture(autouse=True)
def nothing_left(request, warm_up):
    """Fail a test that leaks a descriptor or a thread. A failed test has said enough already."""
    before, threads = descriptors(), set(threading.enumerate())
    yield
    if getattr(request.node, "failed", False):
        gc.collect()
        return
    if descriptors() != before:
        gc.collect()
        after = descriptors()
        leaked = {fd: what for fd, what in after.items() if before.get(fd) != what}
        lost = {fd: what for fd, what in before.items() if fd not in after}
        assert not leaked, f"descriptors leaked: {leaked}"
        assert not lost, f"descriptors closed that the test does not own: {lost}"
    for thread in set(threading.enumerate()) - threads:
        thread.join(5)          # an executor's threads end soon after its shutdown
        assert not thread.is_alive(), f"thread leaked: {thread}"
