"""The playground's shell: a page, its script and its style. No data are in them, so they need no API key."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from pellucid.glass.assets import PLAYGROUND_POLICY, PLAYGROUND_SCRIPTS, playground_page, read, script
from pellucid.server.settings import ServerSettings

HEADERS = {
    "Content-Security-Policy": PLAYGROUND_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def playground_router(settings: ServerSettings) -> APIRouter:
    """The paths that `gate.SHELL_PATHS` names."""
    router = APIRouter()
    page = playground_page(settings.most_trace_level)

    async def shell() -> Response:
        return Response(page, media_type="text/html", headers=HEADERS)

    router.add_api_route("/", shell, include_in_schema=False)
    router.add_api_route("/glass/playground.js", _script, include_in_schema=False)
    router.add_api_route("/glass/style.css", _style, include_in_schema=False)
    return router


async def _script() -> Response:
    return Response(script(PLAYGROUND_SCRIPTS), media_type="text/javascript", headers=HEADERS)


async def _style() -> Response:
    return Response(read("style.css"), media_type="text/css", headers=HEADERS)
