"""The application: what is served under which address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from midge.serve.access import Refusal
from midge.serve.live import stream_endpoint
from midge.serve.service import Service
from midge.serve.uploads import transcribe_endpoint
from midge.serve.vosk import vosk_endpoint

STATIC = Path(__file__).parent / "static"
"""The page and all that belongs to it; nothing else is served from disk."""


def application(service: Service) -> Starlette:
    """The ASGI application of a service, which it starts and stops.

    Args:
        service: new.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    routes = [
        Route("/", _page, methods=["GET"]),
        Mount("/static", StaticFiles(directory=STATIC)),
        Route("/health", _health, methods=["GET"]),
        Route("/metrics", _metrics, methods=["GET"]),
        Route("/transcribe", transcribe_endpoint, methods=["POST"]),
        WebSocketRoute("/stream", stream_endpoint),
        WebSocketRoute("/", vosk_endpoint),
        WebSocketRoute("/vosk", vosk_endpoint),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.service = service
    return app


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _health(request: Request) -> Response:
    return JSONResponse(request.app.state.service.health())


async def _metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    try:
        service.access.check_token(request.headers, request.query_params.get("token"))
    except Refusal as refusal:
        return PlainTextResponse(f"{refusal}\n", 401, {"WWW-Authenticate": "Bearer"})
    return PlainTextResponse(service.metrics.page(), media_type="text/plain; version=0.0.4")
