"""The application: routes, refusals in OpenAI's shape, the gate around them."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pellucid.server.api_errors import ApiError, internal_error
from pellucid.server.delivery import CLIENT_GONE
from pellucid.server.document import describe
from pellucid.server.embeddings import EmbeddingRoutes
from pellucid.server.gate import NOTES, OPEN_PATHS, Gate
from pellucid.server.metrics import Metrics
from pellucid.server.models import ModelPool
from pellucid.server.playground import playground_router
from pellucid.server.prefill import PrefillRoutes
from pellucid.server.routes import Routes
from pellucid.server.settings import DEFAULTS, ServerSettings
from pellucid.server.sockets import SocketGate
from pellucid.server.traces import TraceRoutes
from pellucid.server.tracing import Tracing
from pellucid.server.type_ahead import TypeAhead
from pellucid.server.wire import JsonResponse


def create_app(
    models: ModelPool,
    settings: ServerSettings = DEFAULTS,
    *,
    version: str = "unknown",
    tracing: Tracing | None = None,
) -> FastAPI:
    """An ASGI application over models; who made the pool and the tracing closes them."""
    metrics = Metrics(models)
    traces = TraceRoutes(models, settings)
    routes = Routes(models=models, settings=settings, metrics=metrics, version=version, traces=traces)
    app = FastAPI(
        title="Pellucid", version=version, description="An OpenAI-compatible API. Unknown fields are refused."
    )
    app.include_router(routes.router())
    app.include_router(PrefillRoutes(models, settings, metrics).router())
    app.include_router(TypeAhead(models, settings, metrics).router())
    app.include_router(EmbeddingRoutes(models, settings, metrics).router())
    app.include_router(traces.router())
    app.include_router(playground_router(settings))
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    app.add_exception_handler(ApiError, _refuse)
    app.add_exception_handler(HTTPException, _refuse_http)
    app.add_exception_handler(ClientDisconnect, _nobody_there)
    app.add_exception_handler(Exception, _apologize)
    app.add_middleware(
        Gate,
        settings=settings,
        metrics=metrics,
        tracing=tracing,
        sockets=partial(SocketGate, settings=settings, metrics=metrics),
    )
    if settings.cors_origin:  # the outermost: a browser asks beforehand without the key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id"],
        )
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = describe(app, OPEN_PATHS)
    return app.openapi_schema


def _refuse(request: Request, error: Any) -> Response:
    request.scope.get(NOTES, {})["error"] = error.code
    return JsonResponse(error.body, error.status, error.headers)


def _refuse_http(request: Request, error: Any) -> Response:
    """What Starlette refuses itself: no such path, no such method."""
    message = {404: f"there is no {request.url.path[:128]} here", 405: f"{request.method} is not served here"}
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    text = message.get(error.status_code, str(error.detail))
    return _refuse(request, ApiError(error.status_code, text, code=code, headers=error.headers))


def _nobody_there(request: Request, _: Any) -> Response:
    return Response(status_code=CLIENT_GONE)


def _apologize(request: Request, _: Any) -> Response:
    """A mistake of ours: the traceback goes to the log, not to the client."""
    return _refuse(request, internal_error())
