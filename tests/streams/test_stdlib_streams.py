"""CPython's own tests of asyncio.streams, on the fast classes.

asyncio's names are replaced by zcloop's while a test runs. Since those tests look at
``reader._buffer``, which puts a reader on the standard path, they run twice: as a program would
have it, and with a reader whose ``_buffer`` only shows what there is, so that the test goes on on
the fast path.
"""
import asyncio
import asyncio.streams
import importlib.util
import unittest

import pytest

from zcloop.fast_streams import StreamReaderProtocol, StreamWriter
from zcloop.reader import StreamReader
from zcloop.reader_buffer import STANDARD

if importlib.util.find_spec("test.test_asyncio.test_streams") is None:
    pytest.skip("this Python comes without its test package", allow_module_level=True)

from test.test_asyncio import test_streams as stdlib


class ShowingReader(StreamReader):
    """Shows its content to a test that compares it, and stays on the fast path."""

    @property
    def _buffer(self):
        assert self._fill is not STANDARD
        return self._head[self._pos:] + b"".join(self._tail or ())

    @_buffer.setter
    def _buffer(self, value):
        assert value == b"" and not hasattr(self, "_head"), "a test changes the buffer"


def cases():
    for test in unittest.defaultTestLoader.loadTestsFromModule(stdlib)._tests:
        for case in test:
            yield type(case), case._testMethodName


@pytest.mark.parametrize("reader_class", [StreamReader, ShowingReader])
@pytest.mark.parametrize(
    "cls, name", list(cases()), ids=lambda value: getattr(value, "__name__", value))
def test_stdlib(cls, name, reader_class, monkeypatch):
    for module in (asyncio, asyncio.streams):
        monkeypatch.setattr(module, "StreamReader", reader_class)
        monkeypatch.setattr(module, "StreamWriter", StreamWriter)
        monkeypatch.setattr(module, "StreamReaderProtocol", StreamReaderProtocol)
    result = unittest.TestResult()
    cls(name).run(result)
    stdlib.tearDownModule()
    for _, text in result.failures + result.errors:
        pytest.fail(text, pytrace=False)
    for _, reason in result.skipped:
        pytest.skip(f"CPython: {reason}")
    assert result.testsRun == 1


def test_all_of_them_were_found():
    names = {name for _, name in cases()}
    assert {"test_readuntil_multi_chunks", "test_readexactly_eof", "test_start_tls"} & names
    assert len(names) >= 60
