"""Who may ask for what: requests of other sites' pages are refused, answers can't run.

A page of any site can make a browser send requests to a server on the person's own
machine.  So a request that changes something must come from our own page (Origin,
Sec-Fetch-Site; programs like curl send neither), and every request must name an address
or this machine as its host: a name that a site has pointed here (DNS rebinding) is refused.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

__all__ = ["add_headers", "guard", "problem"]

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_READING = ("GET", "HEAD")


def problem(status: int, message: str) -> web.Response:
    """An error answer; the page shows the message to the person as it is."""
    return web.json_response({"error": message}, status=status)


def guard(host: str) -> Middleware:
    """The middleware of a server that was told to listen on ``host``."""
    known = {"localhost", host.lower(), socket.gethostname().lower()}

    @web.middleware
    async def check(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not _names_us(request.host, known):
            return problem(403, "This address isn't the demo's own; use the one it printed.")
        if request.method not in _READING and not _from_our_page(request):
            return problem(403, "Requests from pages of other sites are refused.")
        try:
            return await handler(request)
        except web.HTTPException as exc:
            return problem(exc.status, f"{exc.reason}.")

    return check


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: what every answer carries."""
    response.headers.update(_HEADERS)


def _names_us(host: str, known: set[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in known or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _from_our_page(request: web.Request) -> bool:
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.host
