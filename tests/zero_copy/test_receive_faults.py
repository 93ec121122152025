"""Mapping under faults: peers that reset, end or go slow, a full arena, a kernel that refuses.

Nothing may be lost, reordered or read where nothing is mapped, and what falls back says so.
"""
import asyncio
import resource
import socket
import subprocess
import sys
import textwrap

import pytest
from page_link import PAGE, Keep, noise, page_link, poll, send_pages, send_plain, send_small
from support import RecordingBuffered, assert_same, reset, settle

import zcloop

pytestmark = pytest.mark.loops("zcloop", "zcloop-debug")
DATA = noise(512 * 1024)


async def test_a_reset_comes_after_the_pages_before_it():
    async with page_link(Keep) as (transport, protocol, peer):
        transport.pause_reading()
        await send_pages(peer, DATA[: 16 * PAGE])
        await settle()
        reset(peer)
        await settle()
        transport.resume_reading()
        await poll(lambda: protocol.ended)
        assert_same(protocol.data(), DATA[: 16 * PAGE])
        assert protocol.views >= 1
        assert isinstance(protocol.exc, ConnectionResetError)
        assert not protocol.eof


@pytest.mark.parametrize("tail", [0, 1, 100, PAGE - 1])
async def test_the_end_of_the_stream_comes_after_pages_and_tail(tail):
    async with page_link(Keep) as (_, protocol, peer):
        await send_pages(peer, DATA[: 16 * PAGE])
        if tail:
            send_small(peer, DATA[:tail])
        peer.shutdown(socket.SHUT_WR)
        await poll(lambda: protocol.ended)
        assert_same(protocol.data(), DATA[: 16 * PAGE] + DATA[:tail])
        assert protocol.eof and protocol.exc is None


async def test_urgent_data_among_pages():
    """The urgent byte itself isn't part of the stream (SO_OOBINLINE is off)."""
    async with page_link(Keep) as (_, protocol, peer):
        expected = b""
        for turn in range(6):
            before = DATA[: 8 * PAGE + turn * 100]     # the mark at a page's end, and elsewhere
            await send_pages(peer, before)
            peer.send(b"!", socket.MSG_OOB)
            await send_pages(peer, DATA)
            expected += before + DATA
            await protocol.until(len(expected))     # a second mark would turn the first into data
        assert_same(protocol.data(), expected)


async def test_views_that_fill_the_arena(monkeypatch):
    """In a process of its own: the arena's size is the process's."""
    program = """
        import asyncio, os, sys
        sys.path[:0] = sys.argv[1:3]
        os.environ.update(ZCLOOP_RECEIVE="map", ZCLOOP_ARENA_BYTES=str(2 << 20))
        from page_link import *
        import zcloop

        async def main():
            data = noise(512 * 1024)
            async with page_link(Keep) as (_, first, peer):
                for _ in range(8):
                    await send_pages(peer, data)
                await first.until(8 * len(data))
                assert first.data() == data * 8
                stats = first.stats()
                assert 0 < stats.bytes_mapped <= 2 << 20, stats
                assert stats.map_arena_full > 0
                loop = asyncio.get_running_loop().zcloop_stats()
                assert loop.arena_full >= stats.map_arena_full
                assert loop.arena_bytes == 2 << 20
                kept = bytes(first.parts[0])
                mapped = stats.bytes_mapped
                del first.parts[1:]                     # and there is room again
                await send_pages(peer, data)
                have = first.have
                await first.until(9 * len(data))
                assert first.stats().bytes_mapped > mapped
                assert first.parts[0] == kept

        zcloop.run(main())
    """
    run_apart(program)


def run_apart(program, *arguments):
    """Runs it with warnings as errors; its exit status and output must be clean."""
    import page_link
    import support
    folders = [module.__file__.rsplit("/", 1)[0] for module in (page_link, support)]
    done = subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(program), *folders,
                           *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_ten_thousand_connections_over_one_arena():
    need = 10_200
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < need:
        pytest.skip(f"needs {need} descriptors, and this process may have {hard}")
    common = """
        import os, resource, sys
        sys.path[:0] = sys.argv[1:3]
        os.environ["ZCLOOP_RECEIVE"] = "map"
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (10_200, hard))
        from page_link import *
        COUNT = 10_000
        data = noise(4 * PAGE)
    """
    client = common + """
        import asyncio
        peers = [page_peer(("127.0.0.1", int(sys.argv[3]))) for _ in range(COUNT)]

        async def send():
            for number, peer in enumerate(peers):
                send_small(peer, number.to_bytes(4, "big"))
                await send_pages(peer, data)

        asyncio.run(send())
        sys.stdin.read()
        for peer in peers:
            peer.close()
    """
    server = common + """
        import asyncio, subprocess
        import zcloop

        async def main():
            loop = asyncio.get_running_loop()
            made = []

            def make():
                made.append(Keep(size=PAGE))
                return made[-1]

            server = await loop.create_server(make, sock=page_listener(), backlog=512)
            port = str(server.sockets[0].getsockname()[1])
            client = subprocess.Popen([sys.executable, "-c", sys.argv[3], *sys.argv[1:3], port],
                                      stdin=subprocess.PIPE)
            await poll(lambda: client.poll() is not None
                       or (len(made) == COUNT and all(p.have >= 4 + len(data) for p in made)))
            mapped = sum(p.stats().bytes_mapped for p in made)
            assert mapped >= 0.9 * COUNT * len(data), mapped
            numbers = set()
            for protocol in made:
                got = protocol.data()
                numbers.add(int.from_bytes(got[:4], "big"))
                assert got[4:] == data
            assert numbers == set(range(COUNT))
            server.close()
            for protocol in made:
                protocol.transport.abort()
            await poll(lambda: all(p.ended for p in made))
            client.stdin.close()
            assert client.wait() == 0
            made.clear()

        zcloop.run(main())
    """
    run_apart(server, textwrap.dedent(client))


# -- SO_RCVLOWAT by hand -----------------------------------------------------------------------


async def test_a_lowat_wakes_once_for_many_small_sends():
    async with page_link(Keep) as (transport, protocol, peer):
        transport.set_read_lowat(64 * 1024)
        for start in range(0, 64 * 1024, 1024):
            await send_plain(peer, DATA[start:start + 1024])
            await asyncio.sleep(0)
        await protocol.until(64 * 1024)
        assert_same(protocol.data(), DATA[: 64 * 1024])
        assert protocol.stats().wakeups <= 20           # of 64 sends
        assert protocol.stats().lowat_set == 1


async def test_a_tail_below_the_lowat_waits_until_it_is_lowered():
    async with page_link(Keep) as (transport, protocol, peer):
        transport.set_read_lowat(200_000)
        send_small(peer, DATA[:1000])
        await settle()
        assert protocol.have == 0
        transport.set_read_lowat(1)
        await protocol.until(1000)
        assert protocol.data() == DATA[:1000]


async def test_the_end_and_a_reset_wake_below_the_lowat():
    async with page_link(Keep) as (transport, protocol, peer):
        transport.set_read_lowat(200_000)
        send_small(peer, DATA[:1000])
        peer.shutdown(socket.SHUT_WR)
        await poll(lambda: protocol.ended)
        assert protocol.data() == DATA[:1000] and protocol.eof
    async with page_link(Keep) as (transport, protocol, peer):
        transport.set_read_lowat(200_000)
        send_small(peer, DATA[:1000])
        reset(peer)
        await poll(lambda: protocol.ended)
        assert isinstance(protocol.exc, ConnectionResetError)


async def test_a_lowat_above_a_locked_receive_buffer():
    """The kernel caps it at half of the buffer, so that a full one wakes the loop."""
    async with page_link(Keep) as (transport, protocol, peer):
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        transport.set_read_lowat(16 * 1024 * 1024)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) < 16 * 1024 * 1024
        await send_plain(peer, DATA)
        peer.shutdown(socket.SHUT_WR)
        await poll(lambda: protocol.ended)
        assert_same(protocol.data(), DATA)


async def test_single_bytes_under_a_lowat():
    """Each costs the receiver a buffer of its own: memory pressure wakes it, or the mark does."""
    async with page_link(Keep) as (transport, protocol, peer):
        transport.set_read_lowat(3000)
        for at in range(6000):
            peer.send(DATA[at:at + 1])
            if at % 100 == 0:
                await asyncio.sleep(0)
        await protocol.until(3000)
        transport.set_read_lowat(1)
        await protocol.until(6000)
        assert_same(protocol.data(), DATA[:6000])


@pytest.mark.parametrize("value", [0, -1, 2**31])
async def test_a_lowat_out_of_range_is_refused(value):
    async with page_link(Keep) as (transport, _, _peer):
        with pytest.raises(ValueError, match="valid are 1 to 2147483647"):
            transport.set_read_lowat(value)
        with pytest.raises(TypeError):
            transport.set_read_lowat("many")


async def test_a_lowat_set_before_a_fill_is_back_after_it():
    reader_made = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda r, w: reader_made.set_result((r, w)),
                                        "127.0.0.1", 0)
    peer = socket.create_connection(server.sockets[0].getsockname())
    reader, writer = await reader_made
    server.close()
    sock = writer.get_extra_info("socket")
    writer.transport.set_read_lowat(500)
    task = asyncio.create_task(reader.readexactly(100_000))
    await send_plain(peer, DATA[:100_000])
    assert await task == DATA[:100_000]
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 500
    peer.close()
    writer.close()
    await writer.wait_closed()


# -- kernels and sandboxes that refuse --------------------------------------------------------

SECCOMP = """
    import ctypes, errno, os, socket, struct, sys

    # A filter (seccomp(2)) by which one system call with given arguments fails: what a
    # container's profile does, and how an older kernel looks from here.
    def forbid(number, arguments, error):
        code = [(0x20, 0, 0, 0), (0x15, 0, 2 * len(arguments) + 1, number)]      # its number
        for place, (index, value) in enumerate(arguments.items()):
            left = 2 * (len(arguments) - place - 1) + 1
            code += [(0x20, 0, 0, 16 + 8 * index), (0x15, 0, left, value)]       # low words
        code += [(0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7FFF0000)]        # errno; allow
        program = b"".join(struct.pack("HBBI", *one) for one in code)
        memory = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(38, 1, 0, 0, 0) == 0                                   # NO_NEW_PRIVS
        assert libc.prctl(22, 2, header, 0, 0) == 0, os.strerror(ctypes.get_errno())
"""

RECEIVE = """
    sys.path[:0] = sys.argv[1:3]
    from page_link import *
    import zcloop

    async def main():
        data = noise(512 * 1024)
        async with page_link(Keep) as (_, protocol, peer):
            await send_pages(peer, data)
            await protocol.until(len(data))
            assert protocol.data() == data
            stats = protocol.stats()
        made = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(lambda r, w: made.set_result((r, w)),
                                            sock=page_listener())
        peer = page_peer(server.sockets[0].getsockname())
        reader, writer = await made
        await send_pages(peer, data)
        assert await reader.readview(len(data)) == data
        server.close()
        writer.close()
        await writer.wait_closed()
        peer.close()
        return stats, asyncio.get_running_loop().zcloop_stats().mapping

    import asyncio
    for mode in ("map", "auto"):
        stats, mapping = zcloop.run(main(), config=zcloop.Config(receive=mode))
        assert stats.bytes_mapped == 0
        print(mode, stats.map_calls, stats.map_unsupported, mapping)
"""

SYSCALLS = {"x86_64": (55, 9), "aarch64": (209, 222)}      # getsockopt, mmap


def syscall_numbers():
    import platform
    numbers = SYSCALLS.get(platform.machine())
    if numbers is None:
        pytest.skip(f"the numbers of system calls on {platform.machine()} aren't known here")
    return numbers


@pytest.mark.parametrize("error", ["ENOPROTOOPT", "EPERM"])
def test_a_kernel_without_the_option(error):
    getsockopt, _ = syscall_numbers()
    out = run_apart(SECCOMP + f"    forbid({getsockopt}, {{1: 6, 2: 35}}, errno.{error})\n"
                    + RECEIVE)
    # Found out once for each loop, at its first attempt.
    why = f"1 1 off: the kernel refuses to map received pages ({error}, "
    assert [line.split(" ", 1)[1].startswith(why) for line in out.splitlines()] == [True, True]


def test_a_container_that_forbids_the_mapping():
    _, mmap = syscall_numbers()
    out = run_apart(SECCOMP + f"    forbid({mmap}, {{2: 1, 3: 1}}, errno.EPERM)\n" + RECEIVE)
    why = "0 0 off: no memory of a TCP socket can be mapped (EPERM, Operation not permitted)"
    assert out.splitlines() == [f"map {why}", f"auto {why}"]


async def test_an_mptcp_connection_copies_and_the_others_map():
    try:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)   # IPPROTO_MPTCP
    except OSError as exc:
        pytest.skip(f"this kernel has no MPTCP: {exc}")
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    loop = asyncio.get_running_loop()
    made = []

    def make():
        made.append(Keep())
        return made[-1]

    server = await loop.create_server(make, sock=listener)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as peer:
        peer.connect(server.sockets[0].getsockname())
        await send_plain(peer, DATA)
        await poll(lambda: made and made[0].have == len(DATA))
        assert_same(made[0].data(), DATA)
        assert made[0].stats().bytes_mapped == 0
        made[0].transport.abort()
        await poll(lambda: made[0].ended)
    server.close()
    async with page_link(Keep) as (_, protocol, peer):
        await send_pages(peer, DATA)
        await protocol.until(len(DATA))
        assert protocol.stats().bytes_mapped > 0.9 * len(DATA)
    assert loop.zcloop_stats().mapping == "on"


async def test_a_view_of_more_than_any_memory():
    """No memory for it: what comes is read as `readexactly` reads it."""
    made = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda r, w: made.set_result((r, w)), "127.0.0.1", 0)
    peer = socket.create_connection(server.sockets[0].getsockname())
    reader, writer = await made
    server.close()
    peer.sendall(DATA[:1000])
    peer.shutdown(socket.SHUT_WR)
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await reader.readview(2**63 - 1)
    assert caught.value.partial == DATA[:1000]
    peer.close()
    writer.close()
    await writer.wait_closed()


async def test_page_memory_over_a_unix_socket_and_after_a_swap():
    """A socket that can't be mapped fills a PageBuffer all the same."""
    memory = zcloop.PageBuffer(len(DATA))

    class Fill(RecordingBuffered):
        def get_buffer(self, sizehint):
            return memoryview(memory)[len(self.data):]

        def buffer_updated(self, nbytes):
            at = len(self.data)
            self.data += memoryview(memory)[at:at + nbytes]
            if len(self.data) == len(DATA):
                self.transport.pause_reading()
            self.note("buffer_updated")

    from support import link
    async with link("unix-server", Fill) as (_, protocol, peer):
        await send_plain(peer, DATA)
        await protocol.received(len(DATA))
        assert_same(memory, DATA)
