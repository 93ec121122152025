"""Connections that end with sends in flight: the buffer outlives the kernel's use of it.

The peer doesn't read, so that most of a payload waits in the kernel, which will read the
program's memory when the peer does. In the meantime the connection ends in each way there is.
Memory is overwritten as soon as it is unlocked, which shows as wrong bytes at the peer if that
was too early; and unlocked it must be in the end, or it is held for ever.
"""
import asyncio
import contextlib
import gc
import os
import select
import socket
import subprocess
import sys
import warnings

import pytest
from support import RecordingProtocol, assert_same, listener, pattern, poll, reset

import zcloop
from zcloop.engine import lib
from zcloop.send_queue import SendQueue

SIZE = 1_500_000
DATA = pattern(SIZE)
SHORT = zcloop.Config(send="zerocopy", zerocopy_threshold=4096, zerocopy_linger=0.3)
LONG = zcloop.Config(send="zerocopy", zerocopy_threshold=4096, zerocopy_linger=3600)


def run(main, config=LONG):
    with asyncio.Runner(loop_factory=lambda: zcloop.new_event_loop(config)) as runner:
        return runner.run(main)


def connected():
    """(own socket, peer): the kernel takes SIZE bytes of ours, the peer's takes few of them."""
    with listener() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * SIZE)
        own.connect(listening.getsockname())
        peer, _ = listening.accept()
    own.setblocking(False)
    return own, peer


def read_to_end(peer):
    """(everything, the error at its end or None), reading as fast as it can; blocks."""
    got = bytearray()
    peer.setblocking(True)
    try:
        while chunk := peer.recv(1 << 20):
            got += chunk
    except ConnectionResetError as exc:
        return got, exc
    return got, None


async def read_all(peer):
    return await asyncio.get_running_loop().run_in_executor(None, read_to_end, peer)


def unlocked(buffer):
    """Whether nobody has the buffer exported; if so, it is overwritten, and then freed."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer[:] = b"\xff" * len(buffer)
    buffer.clear()
    return True


@contextlib.asynccontextmanager
async def in_flight():
    """(transport, protocol, peer, buffer, future) with SIZE bytes in the kernel, few delivered."""
    own, peer = connected()
    with peer:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(RecordingProtocol, sock=own)
        buffer = bytearray(DATA)
        future = transport.write_zerocopy(buffer)
        assert transport.get_write_buffer_size() == 0
        assert loop.zcloop_stats().zerocopy_outstanding > 0
        assert not unlocked(buffer)
        yield transport, protocol, peer, buffer, future


def in_flight_now():
    return asyncio.get_running_loop().zcloop_stats().zerocopy_outstanding


def counted(transport):
    """(sends, how many of them are complete), of a transport that may have ended long ago."""
    stats = transport.get_extra_info("zcloop")
    return stats.zerocopy_sends, stats.zerocopy_completed


async def nothing_held(buffer):
    await poll(lambda: unlocked(buffer))
    await poll(lambda: not asyncio.get_running_loop().zcloop_stats().zerocopy_lingering)
    stats = asyncio.get_running_loop().zcloop_stats()
    assert (stats.zerocopy_outstanding, stats.zerocopy_pinned) == (0, 0)


def test_close_delivers_everything():
    """connection_lost doesn't wait for the peer; descriptor and buffer do."""
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.close()
            await protocol.called("connection_lost")
            assert protocol.exc is None
            assert transport.get_extra_info("socket").fileno() == -1
            assert not future.done()
            assert not unlocked(buffer)
            assert asyncio.get_running_loop().zcloop_stats().zerocopy_lingering == 1
            sends, complete = counted(transport)
            assert sends > complete
            reading = asyncio.ensure_future(read_all(peer))
            assert await future is None
            assert unlocked(buffer)
            got, error = await reading
            assert error is None
            assert_same(got, DATA)
            await nothing_held(buffer)
            assert counted(transport) == (sends, sends)
    run(main())


def test_bytes_are_held_too():
    """Nobody but the kernel's hold has a reference on what was written."""
    async def main():
        async with in_flight() as (transport, protocol, peer, _, _):
            before = sys.getrefcount(data := pattern(100_000, seed=5))
            transport.write(data)
            queued = transport.get_write_buffer_size()
            transport.close()
            assert sys.getrefcount(data) > before
            got, _ = await read_all(peer)
            assert_same(got, DATA + data)
            await poll(lambda: sys.getrefcount(data) == before)
            assert queued >= 0
            await protocol.called("connection_lost")
            await poll(lambda: not in_flight_now())
    run(main())


def test_close_gives_a_stalled_peer_up():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.close()
            await protocol.called("connection_lost")
            assert await future is None       # the kernel had all of it, and let go
            assert unlocked(buffer)
            got, error = read_to_end(peer)
            assert error is not None
            assert_same(got, DATA[:len(got)])
            await nothing_held(buffer)
    run(main(), SHORT)


def test_close_gives_a_stalled_peer_up_with_a_queue():
    """What is queued behind is bounded, too; its future says that it wasn't sent."""
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            behind = bytearray(16_000_000)
            second = transport.write_zerocopy(behind)
            assert transport.get_write_buffer_size() > 0
            transport.close()
            await protocol.called("connection_lost")
            assert isinstance(protocol.exc, OSError)
            with pytest.raises(OSError):
                await second
            await future
            got, error = read_to_end(peer)
            assert error is not None
            assert_same(got, DATA[:len(got)])
            await nothing_held(buffer)
            await nothing_held(behind)
    run(main(), SHORT)


@pytest.mark.parametrize("before", [None, "close", "write_eof"])
def test_abort_lets_go_at_once(before):
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            if before == "close":
                transport.write(bytes(16_000_000))      # so that close() has to wait
            if before:
                getattr(transport, before)()
            transport.abort()
            await protocol.called("connection_lost")
            assert protocol.exc is None
            await nothing_held(buffer)
            sends, complete = counted(transport)
            assert complete == sends > 0
            assert future.done()
            got, error = read_to_end(peer)
            assert error is not None
            assert_same(got, DATA[:len(got)])
    run(main())


def test_peer_resets():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            reset(peer)
            await protocol.called("connection_lost")
            assert isinstance(protocol.exc, ConnectionResetError)
            assert await future is None
            await nothing_held(buffer)
            late = transport.write_zerocopy(b"late")
            with pytest.raises(ConnectionResetError):
                await late
    run(main())


def test_a_reset_after_close_lets_go():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.close()
            await protocol.called("connection_lost")
            assert not unlocked(buffer)
            reset(peer)
            await future
            await nothing_held(buffer)
    run(main())


def test_write_eof_delivers_everything():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.write_eof()
            reading = asyncio.ensure_future(read_all(peer))
            await future
            assert unlocked(buffer)
            got, error = await reading
            assert error is None
            assert_same(got, DATA)
            assert not transport.is_closing()
            transport.close()
            await protocol.called("connection_lost")
    run(main())


def test_cancelling_ends_the_waiting_only():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            async def waits():
                await future
            task = asyncio.ensure_future(waits())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert future.cancelled()
            assert not unlocked(buffer)
            transport.close()
            got, error = await read_all(peer)
            assert error is None
            assert_same(got, DATA)
            await nothing_held(buffer)
            await protocol.called("connection_lost")
    run(main())


def test_sendfile_after_sends_in_flight(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(pattern(300_000, seed=99))

    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            reading = asyncio.ensure_future(read_all(peer))
            with path.open("rb") as file:
                await asyncio.get_running_loop().sendfile(transport, file)
            transport.close()
            await future
            assert unlocked(buffer)
            got, error = await reading
            assert error is None
            assert_same(got, DATA + path.read_bytes())
            await protocol.called("connection_lost")
            await nothing_held(buffer)
    run(main())


def test_set_protocol_with_sends_in_flight():
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            second = RecordingProtocol()
            transport.set_protocol(second)
            peer.send(b"to the second")
            await second.received(13)
            transport.close()
            await second.called("connection_lost")
            reading = asyncio.ensure_future(read_all(peer))
            await future
            assert unlocked(buffer)
            assert_same((await reading)[0], DATA)
            assert "connection_lost" not in protocol.calls
            await nothing_held(buffer)
    run(main())


def test_a_peer_that_sends_after_close_is_reset():
    """As by a plain socket that was closed; else it would fill a buffer that nobody empties."""
    def send_on(peer):
        peer.setblocking(True)
        with pytest.raises(ConnectionError):
            while True:
                peer.send(bytes(65536))

    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.close()
            await protocol.called("connection_lost")
            assert not unlocked(buffer)
            await asyncio.get_running_loop().run_in_executor(None, send_on, peer)
            await future
            await nothing_held(buffer)
    run(main())


def test_close_with_something_unread_resets():
    """As the close of a plain socket does; the peer doesn't wait for what it will never get."""
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            transport.pause_reading()
            peer.send(b"unread")
            transport.close()
            await protocol.called("connection_lost")
            assert protocol.exc is None
            await future
            await nothing_held(buffer)
            assert read_to_end(peer)[1] is not None
    run(main())


def test_a_send_that_starts_after_close_is_bounded_too():
    """Nothing is in flight at close(): the flight is queued behind what is copied."""
    async def main():
        own, peer = connected()
        with peer:
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(RecordingProtocol, sock=own)
            while not transport.get_write_buffer_size():
                transport.write(bytes(65536))
            transport.write(bytes(4_000_000))
            behind = bytearray(16_000_000)
            future = transport.write_zerocopy(behind)
            assert in_flight_now() == 0
            transport.close()
            while not in_flight_now():
                with contextlib.suppress(BlockingIOError):
                    peer.recv(65536, socket.MSG_DONTWAIT)
                await asyncio.sleep(0)
            await protocol.called("connection_lost")
            assert isinstance(protocol.exc, OSError)
            with pytest.raises(OSError):
                await future
            await nothing_held(behind)
    run(main(), zcloop.Config(send="zerocopy", zerocopy_threshold=5_000_000, zerocopy_linger=0.3))


# -- buffers whose end runs code ------------------------------------------------------------------

class Telling(bytearray):
    """Calls `told` when it is freed."""

    told = staticmethod(lambda: None)

    def __del__(self):
        self.told()


def wait_for_notice(transport):
    """Block until the kernel has told of a completion; nobody reads it meanwhile."""
    errors = select.poll()
    errors.register(transport.get_extra_info("socket").fileno(), 0)
    assert errors.poll()[0][1] & select.POLLERR


REACTIONS = {
    "abort": lambda transport: transport.abort(),
    "close": lambda transport: transport.close(),
    "write": lambda transport: transport.write(b"late"),
    "write_zerocopy": lambda transport: transport.write_zerocopy(bytes(5000)),
    "write_eof": lambda transport: transport.write_eof(),
    "ask": lambda transport: transport.get_extra_info("socket").fileno(),
}
RELEASES = {
    "close": lambda transport: transport.close(),
    "abort": lambda transport: transport.abort(),
    "reap": lambda transport: transport._reap(),
}


@pytest.mark.parametrize("reaction", REACTIONS)
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("queued", [False, True])
def test_a_buffer_s_end_runs_code(release, reaction, queued):
    """A finaliser may do to the connection what it likes, wherever that lets go of the buffer."""
    called, errors = [], []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        own, peer = connected()
        with peer:
            transport, protocol = await loop.create_connection(RecordingProtocol, sock=own)

            def told():
                called.append(reaction)
                with contextlib.suppress(RuntimeError):     # a write after write_eof()
                    REACTIONS[reaction](transport)
            buffer = Telling(DATA[:20_000])
            buffer.told = told
            future = transport.write_zerocopy(buffer)
            del buffer
            if queued:
                transport.write(bytes(16_000_000))
            assert len(peer.recv(20_000, socket.MSG_WAITALL)) == 20_000
            wait_for_notice(transport)
            RELEASES[release](transport)
            reading = asyncio.ensure_future(read_all(peer))
            await future
            await poll(lambda: called)
            transport.close()
            await protocol.called("connection_lost")
            assert protocol.calls.count("connection_lost") == 1
            assert transport.get_write_buffer_size() == 0
            await reading
            await poll(lambda: not loop.zcloop_stats().zerocopy_lingering)
            assert in_flight_now() == 0
    run(main())
    assert called == [reaction]
    assert errors == []


def test_a_copied_buffer_s_end_aborts():
    """It ends in the middle of sending the queue: what is behind it isn't sent any more."""
    errors = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        own, peer = connected()
        with peer:
            transport, protocol = await loop.create_connection(RecordingProtocol, sock=own)
            transport.write(bytes(16_000_000))
            assert transport.get_write_buffer_size() > 0
            buffer = Telling(b"last")
            buffer.told = transport.abort
            future = transport.write_zerocopy(buffer)
            del buffer
            transport.write(b"never sent")
            reading = asyncio.ensure_future(read_all(peer))
            await protocol.called("connection_lost")
            assert protocol.exc is None
            assert await future is None
            assert not (await reading)[0].endswith(b"never sent")
    run(main(), zcloop.Config(send="copy"))
    assert errors == []


@pytest.mark.parametrize("reaction", REACTIONS)
@pytest.mark.parametrize("by_peer", [False, True])
def test_a_dropped_buffer_s_end_runs_code(by_peer, reaction):
    """The queue is dropped with the buffer in it: nothing is sent past the hole."""
    errors = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        own, peer = connected()
        with peer:
            transport, protocol = await loop.create_connection(RecordingProtocol, sock=own)
            transport.write(bytes(16_000_000))
            assert transport.get_write_buffer_size() > 0
            buffer = Telling(b"dropped")
            buffer.told = lambda: REACTIONS[reaction](transport)
            future = transport.write_zerocopy(buffer)
            del buffer
            if by_peer:
                reset(peer)
            else:
                transport.abort()
            await protocol.called("connection_lost")
            with pytest.raises(OSError):
                await future
            assert isinstance(protocol.exc, OSError if by_peer else type(None))
            assert transport.get_write_buffer_size() == 0
            if not by_peer:
                assert not any((await read_all(peer))[0])
    run(main(), zcloop.Config(send="copy"))
    assert errors == []


@pytest.mark.parametrize("reaction", ["abort", "write"])
def test_code_runs_while_the_queue_is_sent(reaction, monkeypatch):
    """As the collector and signal handlers do, between any two steps; here right after a send."""
    send_vector = SendQueue._send_vector

    def interrupted(transport, queue):
        result = send_vector(transport, queue)
        monkeypatch.undo()
        REACTIONS[reaction](transport)
        return result

    async def main():
        own, peer = connected()
        with peer:
            transport, protocol = await asyncio.get_running_loop().create_connection(
                RecordingProtocol, sock=own)
            sent = b"first" * 3_000_000
            transport.write(sent)
            for _ in range(5):
                transport.write(DATA)
            monkeypatch.setattr(SendQueue, "_send_vector", interrupted)
            reading = asyncio.ensure_future(read_all(peer))
            if reaction == "write":
                await poll(lambda: transport.get_write_buffer_size() == 0)
                transport.close()
            await protocol.called("connection_lost")
            assert transport.get_write_buffer_size() == 0
            got, _ = await reading
            whole = sent + 5 * DATA + b"late"
            assert_same(got, whole if reaction == "write" else whole[:len(got)])
    run(main(), zcloop.Config(send="copy"))


# -- the loop is gone ---------------------------------------------------------------------------

def reap_orphans(buffer):
    """What any loop's beginning and end does; blocks until the kernel has let go."""
    while lib.zc_release_orphans():
        pass
    assert unlocked(buffer)


def leave_open(ending):
    """The loop is closed right after `ending(transport, future)`; (peer, buffer, whether done)."""
    async def main():
        async with contextlib.AsyncExitStack() as stack:
            transport, protocol, peer, buffer, future = await stack.enter_async_context(in_flight())
            ending(transport, future)
            if transport.is_closing():
                await protocol.called("connection_lost")
            return socket.socket(fileno=os.dup(peer.fileno())), buffer, future.done
    return run(main())


def close(transport, future):
    transport.close()


def test_loop_closed_while_lingering():
    """The process keeps what the loop can't: nothing is lost, and nothing is let go too early."""
    peer, buffer, done = leave_open(close)
    with peer:
        assert not unlocked(buffer)
        assert lib.zc_release_orphans() == 1
        got, error = read_to_end(peer)
    assert error is None
    assert_same(got, DATA)
    reap_orphans(buffer)
    assert not done()               # its loop is closed


def test_loop_closed_and_transport_collected():
    """Also where what waits for the future leads back to the transport."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        peer, buffer, done = leave_open(
            lambda transport, future: future.add_done_callback(lambda _: transport))
        assert lib.zc_release_orphans() == 0
        del done
        gc.collect()
    with peer:
        assert not unlocked(buffer)
        assert lib.zc_release_orphans() == 1
        got, error = read_to_end(peer)
    assert error is None
    assert_same(got, DATA)
    reap_orphans(buffer)


def test_a_new_loop_takes_care_of_orphans():
    async def serve():
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        server.close()
        await server.wait_closed()
    peer, buffer, _ = leave_open(close)
    with peer:
        run(serve())
        assert not unlocked(buffer)
        assert_same(read_to_end(peer)[0], DATA)
    while not unlocked(buffer):
        run(serve())


# -- the process is gone, or there are two -------------------------------------------------------

EXIT_PROGRAM = '''
import asyncio, socket, sys, zcloop
sys.path.insert(0, sys.argv[1])
from support import pattern

class Spoiler:
    """Collected while the interpreter is shut down: overwrites what it can."""
    def __init__(self, buffer):
        self.buffer = buffer
    def __del__(self):
        try:
            self.buffer.append(0)
        except BufferError:
            return
        self.buffer[:] = bytes(len(self.buffer))

async def main(own):
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=own)
    buffer = bytearray(pattern(int(sys.argv[3])))
    transport.write_zerocopy(buffer)
    assert transport.get_write_buffer_size() == 0
    if sys.argv[4] == "close":
        transport.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return transport, Spoiler(buffer)

own = socket.socket(fileno=int(sys.argv[2]))
own.setblocking(False)
config = zcloop.Config(send="zerocopy", zerocopy_threshold=4096, zerocopy_linger=3600)
loop = zcloop.new_event_loop(config)
kept = loop.run_until_complete(main(own))
print(loop.zcloop_stats().zerocopy_outstanding > 0, flush=True)
if sys.argv[4] == "exit in a callback":
    loop.call_soon(sys.exit)
    loop.run_forever()
elif sys.argv[4] == "loop close":
    loop.close()
if sys.argv[4] == "cycle":
    kept[1].cycle = kept
    del kept
'''


@pytest.mark.parametrize(
    "ending", ["close", "nothing", "exit in a callback", "loop close", "cycle"])
def test_interpreter_exits(ending):
    """The peer reads only when the process is gone: its memory went with it, the pages didn't."""
    own, peer = connected()
    with own, peer:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", EXIT_PROGRAM, os.path.dirname(os.path.dirname(
                __file__)), str(own.fileno()), str(SIZE), ending],
            pass_fds=[own.fileno()], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "True\n", done.stderr
        own.close()
        got, error = read_to_end(peer)
        assert error is None
        assert_same(got, DATA)


def test_a_forked_child_changes_nothing():
    """The child overwrites and frees all it has; the parent's bytes go out as they were."""
    async def main():
        async with in_flight() as (transport, protocol, peer, buffer, future):
            child = os.fork()
            if child == 0:
                try:
                    transport._reap()           # a copy of the parent's: let go at once
                    ok = unlocked(buffer)
                    del buffer
                    gc.collect()
                finally:
                    os._exit(0 if ok else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert not unlocked(buffer)
            transport.close()
            reading = asyncio.ensure_future(read_all(peer))
            await future
            assert unlocked(buffer)
            got, error = await reading
            assert error is None
            assert_same(got, DATA)
            await protocol.called("connection_lost")
            await nothing_held(buffer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)     # fork with an executor's thread
        run(main())
