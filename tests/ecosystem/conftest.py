"""The libraries that people run on an asyncio loop, unchanged: see http_tools.py for the tools."""
import ssl

import pytest
import trustme


@pytest.fixture(scope="session")
def authority():
    return trustme.CA()


@pytest.fixture(scope="session")
def server_tls(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return context


@pytest.fixture(scope="session")
def client_tls(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context
