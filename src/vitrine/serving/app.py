"""The web application: the routes, the page's files and the guard around them; /openapi.json describes it."""

import hashlib
from collections.abc import Awaitable, Callable

from vitrine.errors import MissingExtraError
from vitrine.page import TYPES, served_files
from vitrine.serving.guard import LOOPBACK, Guard
from vitrine.serving.opentelemetry import Traces
from vitrine.serving.service import Service
from vitrine.version import __version__

try:
    from fastapi import FastAPI, Request
    from starlette.responses import Response

    from vitrine.serving.inference_routes import add_inference_routes
    from vitrine.serving.picture_routes import add_picture_routes
    from vitrine.serving.responses import add_error_handlers
    from vitrine.serving.status_routes import add_content_routes, add_health_routes, add_run_route
except ImportError:
    raise MissingExtraError("fastapi", extra="serve", purpose="serving a model") from None


def create_app(
    service: Service,
    *,
    api_key: str | None = None,
    hosts: frozenset[str] | None = LOOPBACK,
    root_path: str = "",
    traces: Traces | None = None,
) -> FastAPI:
    """Build the application for a service; it answers to the host names in `hosts`, or to any if that is None.

    `root_path` is where a proxy shows it, such as /vitrine; `api_key` may be several keys, separated by commas.
    """
    app = FastAPI(
        title="Vitrine",
        version=__version__,
        description="A Vision Transformer behind an API: classes, features and attention of pictures.",
        docs_url=None,  # FastAPI's own page loads its parts from elsewhere; ours is at /docs
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        servers=[{"url": root_path}] if root_path else None,
        redirect_slashes=False,  # Starlette would redirect to the host that the client names
    )
    add_picture_routes(app, service)
    add_inference_routes(app, service)
    add_content_routes(app, service)
    add_run_route(app, service)
    add_health_routes(app, service)
    pages = add_page(app)
    add_error_handlers(app)
    app.add_middleware(
        Guard,
        header_bytes=service.limits.header_bytes,
        known_paths=frozenset(route.path for route in app.routes if hasattr(route, "path")) - pages,
        static_paths=pages,
        api_key=api_key,
        hosts=hosts,
        metrics=service.metrics,
        root_path=root_path,
        is_stopping=lambda: service.admission.is_stopping,
        traces=traces,
    )
    return app


def add_page(app: FastAPI) -> frozenset[str]:
    """Add the page's files, read once, so that no request touches the disk; return their paths."""
    paths = {"/docs/"}
    for name, data in served_files().items():
        kind = TYPES[name.rsplit(".", 1)[1]]
        path = {"index.html": "/", "docs.html": "/docs"}.get(name, f"/{name}")
        paths.add(path)
        app.add_route(path, _file(data, kind), methods=["GET"], include_in_schema=False)
    app.add_route("/docs/", _redirect("../docs"), methods=["GET"], include_in_schema=False)
    return frozenset(paths)


def _file(data: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()[:16]}"', "Cache-Control": "no-cache"}

    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=kind, headers=headers)

    return send


def _redirect(path: str) -> Callable[[Request], Awaitable[Response]]:
    async def send(request: Request) -> Response:
        return Response(status_code=308, headers={"Location": path})

    return send
