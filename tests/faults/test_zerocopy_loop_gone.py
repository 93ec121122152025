"""Sends in flight whose loop or process has ended, or that are in two processes after a fork."""
import asyncio
import contextlib
import gc
import os
import socket
import subprocess
import sys
import warnings

import pytest
from flight_tools import (
    DATA,
    SIZE,
    connected,
    in_flight,
    nothing_held,
    read_all,
    read_to_end,
    run,
    unlocked,
)
from support import assert_same

from zcloop.engine import lib

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
