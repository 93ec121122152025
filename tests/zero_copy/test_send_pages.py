"""Config(send="pages"): what is sent can be mapped by a receiver on the same host.

A raw receiver with TCP_ZEROCOPY_RECEIVE (mapping_receiver.py), in another process or in another
network namespace behind veth, maps at least 99 % of the bytes, at any MTU and without anything done
at its own end. Plain sends are the control: nothing of them can be mapped. Every byte is compared,
by a hash. Then the same with zcloop at both ends.
"""
import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from page_link import Keep, noise, poll
from support import assert_same

import zcloop
from benchmarks import namespaces

HERE = Path(__file__).parent
MIB = 32


def transfer(mode, size, header=0, places=None):
    """(share of the bytes that was mapped, the sender's counters)."""
    here, there = places or (namespaces.Namespace((), ""), namespaces.Namespace((), "127.0.0.1"))
    receiver_command = [*there.enter, sys.executable, HERE / "mapping_receiver.py", there.address]
    with subprocess.Popen(receiver_command, stdout=subprocess.PIPE, text=True) as receiver:
        port = receiver.stdout.readline().strip()
        sizes = [str(number) for number in (MIB, size, header)]
        sender_command = [*here.enter, sys.executable, HERE / "page_sender.py"]
        sender = subprocess.run([*sender_command, there.address, port, mode, *sizes],
                                capture_output=True, text=True)
        if sender.returncode:
            receiver.kill()
        assert sender.returncode == 0, sender.stderr
        got = json.loads(receiver.stdout.readline())
    sent = json.loads(sender.stdout)
    assert got["hash"] == sent["hash"]
    assert got["received"] == sent["stats"]["bytes_sent"]
    print(f"{mode}, {size} bytes: {got['mapped'] / got['received']:.2%} mapped")
    return got["mapped"] / got["received"], sent["stats"]


@pytest.mark.parametrize("size, header", [(1 << 20, 0), (1 << 20, 100), (1_000_000, 0),
                                          (256 << 10, 0), (64 << 10, 0), (61440, 0)])
def test_loopback(size, header):
    share, counted = transfer("pages", size, header)
    # Of a write that is no whole number of pages, the end is copied.
    whole = size // 4096 * 4096 / (size + header)
    assert share >= 0.99 * whole
    assert counted["zerocopy_sends"] >= counted["zerocopy_completed"] > 0


@pytest.mark.parametrize("mode", ["copy", "auto"])
def test_nothing_can_be_mapped_of_plain_sends(mode):
    share, _ = transfer(mode, 1 << 20)
    assert share < 0.05             # auto tries once whether the kernel copies


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_between_namespaces(mtu):
    if why := namespaces.why_not():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        places = stack.enter_context(namespaces.veth(mtu))
        shares = []
        # A packet cut at the edge of a full receive window loses a page or two, and a receiver that
        # gets no processor for a while fills its window: so it is the best of a few transfers.
        while max(shares, default=0) < 0.99 and len(shares) < 6:
            shares.append(transfer("pages", 1 << 20, places=places)[0])
    assert max(shares) >= 0.99
    assert min(shares) > 0.8


PIECE = 1 << 20
MAPPED_MOSTLY = 0.75
"""What zcloop maps of pages is its receiving half's matter, and hangs on when it looks: bytes that
it finds before it knows where they go are copied. That they are pages is shown above."""


async def from_zcloop(factory, data, times):
    """A server's protocol, or (reader, writer), that gets `data` so many times from this loop."""
    loop = asyncio.get_running_loop()
    made = []

    def make():
        made.append(factory())
        return made[0]

    server = await loop.create_server(make, "127.0.0.1", 0)
    _, writer = await zcloop.open_connection(*server.sockets[0].getsockname())
    for _ in range(times):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()
    server.close()
    return made[0]


def run(coroutine):
    return zcloop.run(coroutine, config=zcloop.Config(send="pages", receive="map"))


def test_a_pages_protocol_gets_pages():
    data = noise(PIECE)

    async def main():
        protocol = await from_zcloop(Keep, data, 16)
        await poll(lambda: protocol.ended)
        assert_same(protocol.data(), data * 16)
        return protocol.stats()

    counted = run(main())
    print(f"{counted.bytes_mapped / counted.bytes_received:.2%} mapped")
    assert counted.bytes_received == 16 * PIECE
    assert counted.bytes_mapped >= MAPPED_MOSTLY * counted.bytes_received


def test_readview_gets_pages():
    data = noise(PIECE)

    async def main():
        result = asyncio.get_running_loop().create_future()

        async def handle(reader, writer):
            views = [await reader.readview(PIECE) for _ in range(16)]
            writer.close()
            result.set_result((views, writer.get_extra_info("zcloop")))

        server = await zcloop.start_server(handle, "127.0.0.1", 0)
        _, writer = await zcloop.open_connection(*server.sockets[0].getsockname())
        for _ in range(16):
            writer.write(data)
            await writer.drain()
        views, counted = await result
        assert all(view == data for view in views)
        writer.close()
        await writer.wait_closed()
        server.close()
        return counted

    counted = run(main())
    print(f"{counted.bytes_mapped / counted.bytes_received:.2%} mapped")
    assert counted.bytes_mapped >= MAPPED_MOSTLY * counted.bytes_received
