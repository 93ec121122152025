"""What the tests of zcloop.contrib share: both of aiohttp's parsers, and both body readers."""
import aiohttp.http_parser
import aiohttp.web_protocol
import pytest
from contrib_tools import READERS

PARSERS = {"c": aiohttp.http_parser.HttpRequestParser,
           "python": aiohttp.http_parser.HttpRequestParserPy}


@pytest.fixture(params=PARSERS)
def parser(request, monkeypatch):
    """Connections made in the test have this parser: aiohttp's choice, or the one in Python."""
    kind = PARSERS[request.param]
    if request.param == "c" and kind is PARSERS["python"]:
        pytest.skip("this aiohttp was built without its C parser")
    monkeypatch.setattr(aiohttp.web_protocol, "HttpRequestParser", kind)
    return request.param


@pytest.fixture(params=READERS)
def read(request):
    """``await read(request)``: a request's body as bytes, by one of the two functions."""
    return READERS[request.param]
