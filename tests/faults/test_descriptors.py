"""Too few descriptors, stolen descriptors, and leaks over thousands of connections."""
import asyncio
import contextlib
import functools
import gc
import os
import socket
import subprocess
import sys
import time
import weakref

import pytest
from support import RecordingProtocol, known_gap, link, settle, unix_path

EMFILE_PROGRAM = '''
import asyncio, logging, os, resource, socket, sys
name = sys.argv[1]
module = __import__(name)
new_loop = asyncio.SelectorEventLoop if name == "asyncio" else module.new_event_loop
logged = []
logging.getLogger("asyncio").addHandler(
    type("Keep", (logging.Handler,), {"emit": lambda self, record: logged.append(record)})())
logging.getLogger("asyncio").propagate = False

class Greeter(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")
        transport.close()

async def main():
    loop = asyncio.get_running_loop()
    contexts = []
    loop.set_exception_handler(lambda loop, context: contexts.append(context))
    server = await loop.create_server(Greeter, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    clients = [socket.socket() for _ in range(20)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    spare = []                      # descriptors below the limit: use them all up
    try:
        while True:
            spare.append(os.dup(0))
    except OSError:
        pass
    for client in clients:
        client.setblocking(False)
        client.connect_ex(address)
    while not (contexts or logged):
        await asyncio.sleep(0.01)
    before, turns = os.times(), 0
    deadline = loop.time() + 0.4
    while loop.time() < deadline:
        await asyncio.sleep(0.02)
        turns += 1
    used = os.times()
    cpu = used.user + used.system - before.user - before.system
    reports = len(contexts) + len(logged)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for fd in spare:
        os.close(fd)
    for client in clients:
        assert await loop.sock_recv(client, 10) == b"hello"
        client.close()
    server.close()
    await server.wait_closed()
    print("reports", reports, "cpu", cpu)

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
'''


@known_gap("asyncio", "reports once for each connection that waits (the backlog)")
@known_gap("uvloop", "reports every failed accept, without a pause", run=False)
def test_too_many_open_files_in_accept(loop_factory):
    """Backs off, says so once, and serves everybody when descriptors are free again."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", EMFILE_PROGRAM, loop_factory.name],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert int(words[1]) == 1, done.stdout
    assert float(words[3]) < 0.2, done.stdout         # of 0.4 s: no busy loop


@known_gap("uvloop", "libuv aborts the process or spins", run=False)
@pytest.mark.parametrize("kind", ["tcp-server", "unix-client"])
@pytest.mark.parametrize("state", ["idle", pytest.param("writing", marks=known_gap(
    "asyncio", "abort() raises the error of epoll_ctl"))])
def test_descriptor_closed_behind_our_back(loop_factory, kind, state):
    """No spinning on it, the loop goes on, and the transport can still be closed."""
    async def main():
        async with link(kind) as (transport, protocol, _peer):
            fd = transport.get_extra_info("socket").fileno()
            spare = os.open("/dev/null", os.O_RDONLY)
            if state == "writing":
                transport.write(b"x" * 20_000_000)
            keep = os.dup(fd)               # the connection itself stays open
            os.dup2(spare, fd)              # whoever uses the number now gets /dev/null
            os.close(spare)
            before = time.process_time()
            await asyncio.sleep(0.2)
            spent = time.process_time() - before
            os.close(keep)
            transport.abort()
            await protocol.called("connection_lost")
            async with link("tcp-client") as (_, other, other_peer):
                other_peer.send(b"alive")
                await other.received(5)
            return spent
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: None)
        assert runner.run(main()) < 0.15


async def test_idle_connections_use_no_cpu():
    """Half-closed, paused and merely open connections: the loop sleeps."""
    async with (link("tcp-server", lambda: RecordingProtocol(eof_result=True)) as (_, half, peer),
                link("unix-client") as (paused, _, noisy), link("tcp-client")):
        peer.shutdown(socket.SHUT_WR)
        await half.called("eof_received")
        paused.pause_reading()
        noisy.send(b"not read")
        await settle()
        before = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - before < 0.1


@pytest.mark.parametrize("unix, rounds", [(True, 20), (False, 5)])
async def test_thousands_of_connections(unix, rounds):
    """Few by TCP: each leaves a port in TIME_WAIT. The leak check runs after this test too."""
    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)
            self.transport.close()
    loop = asyncio.get_running_loop()
    folder = contextlib.ExitStack()
    if unix:
        path = folder.enter_context(unix_path())
        server = await loop.create_unix_server(Echo, path, backlog=200)
        connect = functools.partial(loop.create_unix_connection, RecordingProtocol, path)
    else:
        server = await loop.create_server(Echo, "127.0.0.1", 0, backlog=200)
        connect = functools.partial(
            loop.create_connection, RecordingProtocol, *server.sockets[0].getsockname())
    highest = 0
    for n in range(rounds):
        protocols = []
        for _ in range(100):
            transport, protocol = await connect()
            transport.write(b"%d" % n)
            protocols.append(protocol)
        for protocol in protocols:
            await protocol.called("connection_lost")
            assert protocol.data == b"%d" % n
        await settle(1)
        count = len(os.listdir("/proc/self/fd"))
        highest = highest or count
        assert count <= highest + 10
    server.close()
    await server.wait_closed()
    folder.close()


async def test_cycles_of_dead_transports_are_collected():
    async with link() as (transport, protocol, peer):
        reference = weakref.ref(protocol)
        transport.close()
        await protocol.called("connection_lost")
    del transport, protocol, peer
    await settle()
    gc.collect()
    assert reference() is None
