"""A look at what zcloop leaves to uvloop: it must go on working beside our transports."""
import asyncio
import os
import signal
import socket
import sys

from support import poll


async def test_subprocess_pipes():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; print(sys.stdin.read().upper()); sys.exit(3)",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate(b"hello" * 20_000)
    assert out == b"HELLO" * 20_000 + b"\n"
    assert process.returncode == 3


async def test_pipes():
    loop = asyncio.get_running_loop()
    read_end, write_end = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb"))
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(write_end, "wb"))
    writer.write(b"through the pipe")
    assert await reader.readexactly(16) == b"through the pipe"
    writer.close()
    assert await reader.read() == b""
    transport.close()
    await asyncio.sleep(0)
    await poll(lambda: not os.path.exists(f"/proc/self/fd/{write_end}"))


async def test_datagrams():
    loop = asyncio.get_running_loop()

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, address):
            self.transport.sendto(data.upper(), address)
    closed = loop.create_future()

    class Client(asyncio.DatagramProtocol):
        def __init__(self):
            self.answer = loop.create_future()

        def datagram_received(self, data, address):
            self.answer.set_result(data)

        def connection_lost(self, exc):
            closed.set_result(exc)
    server, _ = await loop.create_datagram_endpoint(Echo, ("127.0.0.1", 0))
    client, protocol = await loop.create_datagram_endpoint(
        Client, remote_addr=server.get_extra_info("sockname"))
    client.sendto(b"datagram")
    assert await protocol.answer == b"DATAGRAM"
    client.close()
    server.close()
    assert await closed is None
    await asyncio.sleep(0)


async def test_signals():
    loop = asyncio.get_running_loop()
    got = loop.create_future()
    loop.add_signal_handler(signal.SIGUSR1, got.set_result, "got it")
    os.kill(os.getpid(), signal.SIGUSR1)
    assert await got == "got it"
    assert loop.remove_signal_handler(signal.SIGUSR1) is True
    assert loop.remove_signal_handler(signal.SIGUSR1) is False


async def test_names():
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo("localhost", 80, family=socket.AF_INET,
                                   type=socket.SOCK_STREAM)
    assert found[0][4] == ("127.0.0.1", 80)
    assert (await loop.getnameinfo(("127.0.0.1", 80), socket.NI_NUMERICHOST))[0] == "127.0.0.1"


async def test_executor():
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, sum, [1, 2, 3]) == 6


async def test_timers_keep_their_order():
    loop = asyncio.get_running_loop()
    order, done = [], loop.create_future()
    for delay in 0.02, 0.005, 0.01, 0:
        loop.call_later(delay, order.append, delay)
    loop.call_later(0.03, done.set_result, None)
    cancelled = loop.call_later(0.001, order.append, "cancelled")
    cancelled.cancel()
    await done
    assert order == [0, 0.005, 0.01, 0.02]
