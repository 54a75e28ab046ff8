"""Which web pages may use this server. Programs send no Origin and are not concerned."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers

from pellucid.server.settings import ServerSettings

LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))
TRACES = "/v1/traces"
"""What answers with prompts of earlier requests to a GET."""


def may_connect(headers: Headers, settings: ServerSettings) -> bool:
    """Whether a page of the origin that the browser names may open a WebSocket, change something or read traces here.

    Browsers open WebSockets to any address without asking; only the headers tell. A page of this server may, and one of
    a --cors-origin. On a loopback address the Host must be a loopback name too, or a foreign name that was made to
    point here would pass for this server's own.
    """
    host = headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname
        origin = headers.get("origin")
        its_own = origin is None or urlsplit(origin).netloc == host
    except ValueError:
        return False
    if settings.host in LOOPBACK and name not in LOOPBACK:
        return False
    return its_own or "*" in settings.cors_origin or origin in settings.cors_origin


def is_foreign_page(method: str, path: str, headers: Headers, settings: ServerSettings) -> bool:
    """Whether a request comes from a web page that may not: it changes something, or reads what requests did.

    Browsers name a page's origin when it changes something, but not when it reads from what it takes for its own
    server: with traces, which may have prompts in them, the Host alone tells.
    """
    if path.startswith(TRACES):
        return not may_connect(headers, settings)
    return method not in ("GET", "HEAD", "OPTIONS") and "origin" in headers and not may_connect(headers, settings)
