"""aiohttp over TLS, with certificates of a made-up authority, and over unix sockets, on both sides;
over both at once as well."""
import asyncio
import ssl

import pytest
import trustme
from aiohttp import ClientConnectorCertificateError, ClientSession, TCPConnector, UnixConnector, web
from http_tools import CHUNK, Sink, Source, digest, served, serving
from support import assert_same, pattern, unix_path

LARGE = 24 * 1024 * 1024


async def tell(request):
    """The body's hash, the scheme, and who the client says it is."""
    sink = await Sink().take_all(request.content.iter_chunked(CHUNK))
    certificate = request.get_extra_info("peercert")
    return web.json_response({
        "digest": sink.hexdigest(), "scheme": request.scheme,
        "client": certificate and certificate["subjectAltName"][0][1]})


async def give(request):
    return web.Response(body=pattern(LARGE))


ROUTES = [web.post("/", tell), web.get("/", give)]


async def check(session, url):
    """A large body each way; then many small requests at once, and a kept connection."""
    source = Source(LARGE)
    async with session.post(url, data=source.__aiter__()) as response:
        answer = await response.json()
        assert answer["digest"] == source.hexdigest()
        assert answer["scheme"] == url.partition(":")[0]
    async with session.get(url) as response:
        assert_same(await response.read(), pattern(LARGE))

    async def one(number):
        async with session.post(url, data=b"%d" % number) as response:
            assert (await response.json())["digest"] == digest(b"%d" % number)
    await asyncio.gather(*(one(number) for number in range(50)))


async def test_tls(server_tls, client_tls):
    async with served(*ROUTES, tls=server_tls, client_tls=client_tls) as (session, url):
        assert url.startswith("https://")
        await check(session, url)


async def test_unknown_authority(server_tls, loop_errors):
    async with served(*ROUTES, tls=server_tls) as (session, url):
        with pytest.raises(ClientConnectorCertificateError):
            await session.get(url)
    loop_errors.clear()         # whether the server's failed handshake is reported varies


async def test_client_certificate(authority):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(server)
    authority.configure_trust(server)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context()
    authority.configure_trust(client)
    authority.issue_cert("someone@example.org").configure_cert(client)
    async with served(*ROUTES, tls=server, client_tls=client) as (session, url):
        async with session.post(url, data=b"") as response:
            assert (await response.json())["client"] == "someone@example.org"


async def test_server_name_decides(authority):
    """Server name indication: the context of the name that the client asks for."""
    asked = []
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server)
    server.sni_callback = lambda connection, name, context: asked.append(name)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    async with served(*ROUTES, tls=server, client_tls=client) as (session, url):
        async with session.post(url, data=b"", server_hostname="localhost") as response:
            assert response.status == 200
    assert asked == ["localhost"]


async def test_unix_socket():
    app = web.Application()
    app.add_routes(ROUTES)
    with unix_path() as path:
        async with serving(app, path=path) as url:
            async with ClientSession(connector=UnixConnector(path)) as session:
                await check(session, url)


async def test_tls_over_a_unix_socket(server_tls, client_tls):
    app = web.Application()
    app.add_routes(ROUTES)
    with unix_path() as path:
        async with serving(app, path=path, tls=server_tls) as url:
            # aiohttp's UnixConnector knows no TLS: the sockets are made by hand.
            reader, writer = await asyncio.open_unix_connection(
                path, ssl=client_tls, server_hostname="localhost")
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert_same(await reader.readexactly(LARGE), pattern(LARGE))
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
        assert url.startswith("https://")


async def test_request_in_the_clear_to_a_tls_server(server_tls, loop_errors):
    async with served(*ROUTES, tls=server_tls) as (_, url):
        reader, writer = await asyncio.open_connection(
            *url.removeprefix("https://").split(":"))
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = await reader.read()
        assert not answer.startswith(b"HTTP")       # nothing, or a TLS alert
        writer.close()
        await writer.wait_closed()
    loop_errors.clear()


async def test_proxy_with_connect(server_tls, client_tls):
    """HTTPS through a proxy: TLS starts on a connection that has carried plain HTTP before."""
    asked = []

    async def connected(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.partition(b"\r\n")[0])
        host, _, port = head.split()[1].partition(b":")
        far_reader, far_writer = await asyncio.open_connection(host.decode(), int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def copy(source, target):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
            target.close()
        try:
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer),
                                 return_exceptions=True)
        finally:
            for end in writer, far_writer:
                end.close()

    proxy = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = proxy.sockets[0].getsockname()
    app = web.Application()
    app.add_routes(ROUTES)
    async with serving(app, tls=server_tls) as url:
        async with ClientSession(connector=TCPConnector(ssl=client_tls)) as session:
            data = pattern(3_000_000)
            async with session.post(url, data=data[:900_000],
                                    proxy=f"http://{host}:{port}") as response:
                assert (await response.json())["digest"] == digest(data[:900_000])
            async with session.get(url, proxy=f"http://{host}:{port}") as response:
                assert_same(await response.read(), pattern(LARGE))
    assert asked and set(asked) == {b"CONNECT " + url.removeprefix("https://").encode()
                                    + b" HTTP/1.1"}
    proxy.close()
    await proxy.wait_closed()


def test_authorities_differ(authority):
    """test_unknown_authority can fail: two made-up authorities do not share a key."""
    assert trustme.CA().cert_pem.bytes() != authority.cert_pem.bytes()
