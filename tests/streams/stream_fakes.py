"""Transports to test the stream reader with: what arrives, and when, is up to the test."""
import asyncio
import collections
import contextlib

from zcloop.chunks import writable
from zcloop.fast_streams import StreamReaderProtocol
from zcloop.reader import StreamReader


class FakeTransport(asyncio.Transport):
    """Delivers to its protocol like a socket transport that can't fill memory in place.

    `arrive`, `eof` and `lose` are what the kernel reports. What can't be delivered waits in
    `kernel`. A transport that was paused delivers nothing before a later loop iteration.
    """

    def __init__(self, protocol):
        super().__init__()
        self.protocol = protocol
        self.kernel = bytearray()
        self.ended = False
        self.end_told = False
        self.closing = False
        self.paused = False
        self.calls = []
        self.happened = collections.Counter()
        self.delivered = 0              # bytes through data_received

    def get_protocol(self):
        return self.protocol

    def set_protocol(self, protocol):
        self.protocol = protocol

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    abort = close

    def write(self, data):
        assert not self.closing

    def is_reading(self):
        return not self.paused and not self.closing

    def pause_reading(self):
        if not self.is_reading():
            return
        self.calls.append("pause")
        self.happened["paused"] += 1
        self.paused = True

    def resume_reading(self):
        if not self.paused or self.closing:
            return
        self.calls.append("resume")
        self.paused = False
        asyncio.get_running_loop().call_soon(self.deliver)

    def arrive(self, data):
        assert not self.ended
        self.kernel += data
        self.deliver()

    def eof(self):
        self.ended = True
        self.deliver()

    def lose(self, exc):
        self.closing = True
        self.stop_filling()
        self.protocol.connection_lost(exc)

    def stop_filling(self):
        pass

    def deliver(self):
        if not self.is_reading():
            return
        if self.kernel:
            data, self.kernel = bytes(self.kernel), bytearray()
            self.delivered += len(data)
            self.protocol.data_received(data)
        if self.ended and self.is_reading() and not self.kernel and not self.end_told:
            self.end_told = True
            self.protocol.eof_received()


class FillingTransport(FakeTransport):
    """The same, and it fills memory in place. Asserts that the reader keeps the contract.

    `at_once`: a fill takes what the kernel has already in the call that begins it.
    """

    def __init__(self, protocol, at_once=True):
        super().__init__(protocol)
        self.at_once = at_once
        self.fill = None                # [buf, end, stop, done]
        self.begun = []                 # (start, stop) of every fill
        self.filled = 0                 # bytes filled in place

    def _can_map(self):
        return False

    def _fill_begin(self, buf, start, stop, done):
        assert self.fill is None, "two fills at once"
        assert self.is_reading(), "a fill on a transport that doesn't read"
        assert self.protocol.data_received.__func__.__name__ == "data_received"
        assert 0 <= start < stop <= len(buf)
        assert type(buf) is bytes or (buf.contiguous and not buf.readonly and buf.itemsize == 1)
        self.begun.append((start, stop))
        self.fill = [buf, start, stop, done]
        if self.at_once:
            self.take()
        end = self.fill[1]
        if end == stop:
            self.happened["completed at once"] += 1
            self.fill = None
        elif self.kernel or self.ended:
            asyncio.get_running_loop().call_soon(self.deliver)
        return end

    def _fill_cancel(self):
        assert self.fill is not None, "no fill to cancel"
        self.happened["cancelled"] += 1
        end = self.fill[1]
        self.fill = None
        if self.kernel or self.ended:
            asyncio.get_running_loop().call_soon(self.deliver)
        return end

    def take(self):
        buf, end, stop, _ = self.fill
        data = self.kernel[:stop - end]
        del self.kernel[:len(data)]
        view = writable(buf) if type(buf) is bytes else buf
        view[end:end + len(data)] = data
        self.filled += len(data)
        self.fill[1] += len(data)

    def stop_filling(self):
        if self.fill is not None:
            _, end, stop, done = self.fill
            self.happened["completed" if end == stop else "ended early"] += 1
            self.fill = None
            done(end)

    def deliver(self):
        if self.fill is not None and self.is_reading():
            self.take()
            if self.fill[1] == self.fill[2] or self.ended:
                self.stop_filling()
        if self.fill is None:
            super().deliver()

    def set_protocol(self, protocol):
        self.stop_filling()
        super().set_protocol(protocol)


def connected(transport_class=FillingTransport, limit=2**16, reader_class=StreamReader,
              protocol_class=StreamReaderProtocol, **kwargs):
    """A reader with a protocol on a new fake transport: (reader, transport)."""
    loop = asyncio.get_running_loop()
    reader = reader_class(limit, loop)
    protocol = protocol_class(reader, loop=loop)
    transport = transport_class(protocol, **kwargs)
    protocol.connection_made(transport)
    return reader, transport


async def ticks(n=1):
    """Let the loop run `n` times: what is ready runs, nothing is waited for."""
    for _ in range(n):
        await asyncio.sleep(0)


async def cancelled(task):
    """Cancel `task` and wait for it to end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def started(coroutine):
    """A task that runs `coroutine` and has come to its first wait."""
    task = asyncio.get_running_loop().create_task(coroutine)
    await ticks()
    assert not task.done()
    return task
