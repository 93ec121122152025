"""contextvars of callbacks, debug mode, closed loops, leaked transports."""
import asyncio
import contextvars
import gc
import logging
import socket
import threading
import time
import warnings

import pytest
from support import FACTORIES, RecordingProtocol, link, listener, poll, recv_exactly, unix_path

variable = contextvars.ContextVar("variable", default="default")


@pytest.mark.parametrize("kind", ["tcp-client", "unix-client"])
@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
async def test_callbacks_run_in_the_context_of_the_connect_call(kind, factory):
    seen = {}

    def hook(protocol, name):
        seen[name] = variable.get()
    token = variable.set("connecting")
    async with link(kind, lambda: factory(hook=hook)) as (transport, protocol, peer):
        variable.set("later")
        peer.send(b"x")
        await protocol.received(1)
        transport.write(b"x" * 20_000_000)
        await recv_exactly(peer, 20_000_000)
        await protocol.called("resume_writing")
        peer.close()
        await protocol.called("connection_lost")
    variable.reset(token)
    # These two belong to a write(), and may come in the writer's context.
    del seen["pause_writing"], seen["resume_writing"]
    assert {"connection_made", "eof_received", "connection_lost"} < set(seen)
    assert seen == dict.fromkeys(seen, "connecting")


async def test_a_variable_set_in_a_callback_does_not_leak_to_the_caller():
    def hook(protocol, name):
        variable.set(name)
    async with link("tcp-client", lambda: RecordingProtocol(hook=hook)) as (_, protocol, peer):
        peer.send(b"x")
        await protocol.received(1)
        assert variable.get() == "default"


async def test_tasks_of_callbacks_inherit_the_context():
    results = []

    async def task():
        results.append(variable.get())

    def hook(protocol, name):
        if name == "data_received":
            results.append(asyncio.ensure_future(task()))
    variable.set("mine")
    async with link("tcp-client", lambda: RecordingProtocol(hook=hook)) as (_, _protocol, peer):
        peer.send(b"x")
        await poll(lambda: len(results) == 2)
        await results[0]
        assert results[1] == "mine"


async def test_other_thread_is_refused_in_debug_mode():
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    errors = []

    def work():
        for call in (lambda: loop.call_soon(print), lambda: loop.call_later(1, print),
                     lambda: loop.call_at(1, print)):
            try:
                call()
            except RuntimeError as exc:
                errors.append(str(exc))
    thread = threading.Thread(target=work)
    thread.start()
    await poll(lambda: not thread.is_alive())
    thread.join()
    assert len(errors) == 3
    assert all("Non-thread-safe operation" in error for error in errors)


async def test_call_soon_threadsafe_wakes_a_sleeping_loop():
    loop = asyncio.get_running_loop()
    for _ in range(50):
        future = loop.create_future()
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(future.set_result, 1))
        thread.start()
        assert await future == 1
        thread.join()


async def test_slow_callback_is_logged_in_debug_mode(caplog):
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0.01
    with caplog.at_level(logging.WARNING, "asyncio"):
        future = loop.create_future()
        loop.call_soon(lambda: (time.sleep(0.02), future.set_result(None)))
        await future
        await asyncio.sleep(0)
    assert any("took 0.0" in r.getMessage() for r in caplog.records)


def test_closed_loop(loop_factory):
    loop = loop_factory()
    loop.close()
    loop.close()
    assert loop.is_closed()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.call_soon(print)
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.run_forever()
    coroutine = asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.run_until_complete(coroutine)
    coroutine.close()


async def test_a_running_loop_can_not_be_closed():
    with pytest.raises(RuntimeError, match="running event loop"):
        asyncio.get_running_loop().close()


def test_loop_can_be_run_again(loop_factory):
    loop = loop_factory()
    assert loop.run_until_complete(asyncio.sleep(0, 1)) == 1
    assert loop.run_until_complete(asyncio.sleep(0, 2)) == 2
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()


def test_connection_survives_between_runs(loop_factory):
    loop = loop_factory()

    async def connect(address):
        return await loop.create_connection(RecordingProtocol, *address)
    with listener() as listening:
        transport, protocol = loop.run_until_complete(connect(listening.getsockname()))
        peer, _ = listening.accept()
    with peer:
        peer.send(b"while stopped")
        loop.run_until_complete(protocol.received(13))
        transport.write(b"x")
        transport.close()
        loop.run_until_complete(protocol.called("connection_lost"))
        assert peer.recv(10) == b"x"
    loop.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_leaked_transport_warns(loop_factory, family):
    """Nobody closed it and the loop is gone: a ResourceWarning, and the descriptor is closed."""
    loop = loop_factory()
    with unix_path() as path, listener(family, path) as listening:
        address = listening.getsockname()
        if family == socket.AF_UNIX:
            coroutine = loop.create_unix_connection(RecordingProtocol, address)
        else:
            coroutine = loop.create_connection(RecordingProtocol, *address)
        transport, protocol = loop.run_until_complete(coroutine)
        peer, _ = listening.accept()
    with peer, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.close()
        del loop, transport, protocol, coroutine
        gc.collect()
        assert peer.recv(10) == b""
    assert any(w.category is ResourceWarning and "unclosed" in str(w.message) for w in caught)
