"""Reading takes time in proportion to what is read: by the bytes that are moved and looked at."""
import asyncio
import sys

import pytest
from stream_fakes import FakeTransport, connected, started, ticks

from zcloop.reader import StreamReader

MIB = 2**20


class Counted(bytes):
    """A chunk that counts the bytes that its methods move or look at. Slices are counted too."""

    moved = looked = 0

    def __getitem__(self, index):
        result = super().__getitem__(index)
        if len(result) == len(self):
            return self
        Counted.moved += len(result)
        return Counted(result)

    def find(self, what, low=0, high=sys.maxsize):
        found = super().find(what, low, high)
        Counted.looked += (min(high, len(self)) if found < 0 else found + 1) - low
        return found

    def __add__(self, other):
        Counted.moved += len(self) + len(other)
        return Counted(bytes.__add__(self, other))


@pytest.fixture(autouse=True)
def reset():
    Counted.moved = Counted.looked = 0


def feed(reader, chunk):
    """Past feed_data's conversion to bytes proper, into the same queue."""
    reader._append(Counted(chunk))
    reader._wakeup_waiter()


@pytest.mark.parametrize("chunk_size", [100, 1000, 65536 - 7, 262144])
def test_64_mib_of_lines(chunk_size):
    asyncio.run(read_lines(chunk_size))


async def read_lines(chunk_size):
    total = (4 if chunk_size < 1000 else 64) * MIB
    line = b"x" * 99 + b"\n"
    reader, _ = connected(FakeTransport, limit=MIB)
    pattern = line * (2 * chunk_size // 100 + 2)
    sent = got = 0
    while got + 100 <= total:
        while reader._size() < 100:
            start = sent % 100
            feed(reader, pattern[start:start + chunk_size])
            sent += chunk_size
        try:
            reader.readline().send(None)
        except StopIteration as stop:
            assert len(stop.value) == 100
            got += 100
        else:
            raise AssertionError("waited, though there was a line")
    # Every byte is cut out of its chunk once, and no more than once looked at; but for the
    # parts of lines at the ends of chunks, which are looked at again.
    assert Counted.moved <= sent + 200 * (sent // chunk_size + 1)
    assert Counted.looked <= sent + 200 * (sent // chunk_size + 1)


@pytest.mark.parametrize("separator", [b"\n", b"\r\n\r\n", (b"\n", b"\r\n")], ids=repr)
async def test_one_long_line_in_small_chunks(separator):
    """A reader that waits for the end of a line looks at every chunk once, when it arrives."""
    size, chunk = 4 * MIB, 1024
    reader, _ = connected(FakeTransport, limit=2 * size)
    task = await started(reader.readuntil(separator))
    for _ in range(size // chunk):
        feed(reader, b"x" * chunk)
        await ticks()
    feed(reader, b"\r\n\r\n")
    line = await task
    assert size < len(line) <= size + 4
    count = len(separator) if isinstance(separator, tuple) else 1
    assert Counted.looked <= count * 1.1 * size
    assert Counted.moved <= 1.1 * size


async def test_looking_for_several_separators_in_one_large_chunk():
    reader, _ = connected(FakeTransport, limit=MIB)
    feed(reader, b"x" * 98 + b"\r\n" + b"x" * 99 + b"\n" + (b"x" * 99 + b"\n") * 9_998)
    for _ in range(10_000):
        await reader.readuntil((b"\n", b"\r\n"))
    assert Counted.moved <= MIB
    assert Counted.looked <= 2 * MIB


async def test_reads_of_the_sizes_that_arrive_move_nothing():
    reader, _ = connected(FakeTransport)
    for _ in range(100):
        chunk = bytes(65536)
        reader.feed_data(chunk)
        assert await reader.read(65536) is chunk
        reader.feed_data(chunk)
        assert await reader.readexactly(65536) is chunk


async def test_many_chunks_are_joined_once():
    reader, _ = connected(FakeTransport, limit=MIB)
    for _ in range(1000):
        feed(reader, b"x" * 1000)
    assert len(await reader.readexactly(999_500)) == 999_500
    assert Counted.moved == 0


def test_counting_does_count():
    reader = object.__new__(StreamReader)
    reader._clear()
    reader._append(Counted(b"x" * 1000))
    assert len(reader._take(400)) == 400
    assert reader._find((b"y",), 0) is None
    assert (Counted.moved, Counted.looked) == (400, 600)
