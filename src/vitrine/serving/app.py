"""The web application: one route a question, every answer described in /openapi.json."""

import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files

from vitrine.errors import MissingExtraError
from vitrine.serving.guard import LOOPBACK, Guard
from vitrine.serving.prometheus import SECONDS, Counter, Histogram
from vitrine.serving.service import Service
from vitrine.version import __version__

try:
    from fastapi import FastAPI, Request
    from starlette.responses import Response

    from vitrine.serving.answers import add_refusals
    from vitrine.serving.questions import add_questions
    from vitrine.serving.status import add_contents, add_health, add_metrics
except ImportError:
    raise MissingExtraError("fastapi", extra="serve", purpose="vitrine serve") from None

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def create_app(
    service: Service, *, api_key: str | None = None, hosts: frozenset[str] | None = LOOPBACK
) -> FastAPI:
    """Make the application round a service; it answers under the names in `hosts`, or any where that is None."""
    app = FastAPI(
        title="Vitrine",
        version=__version__,
        description="A Vision Transformer in service: classes, features and attention of pictures.",
        docs_url=None,  # FastAPI's own page loads its parts from elsewhere; ours is at /docs
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    add_questions(app, service)
    add_contents(app, service)
    add_health(app, service)
    pages = add_page(app)
    requests = Counter("vitrine_requests_total", "Requests answered, by path and status.")
    seconds = Histogram("vitrine_request_seconds", "Time from headers to answer.", bounds=SECONDS)
    add_metrics(app, service, requests=requests, seconds=seconds)
    add_refusals(app)
    app.add_middleware(
        Guard,
        header_bytes=service.limits.header_bytes,
        known_paths=frozenset(route.path for route in app.routes if hasattr(route, "path")) - pages,
        static_paths=pages,
        api_key=api_key,
        hosts=hosts,
        requests=requests,
        seconds=seconds,
    )
    return app


def add_page(app: FastAPI) -> frozenset[str]:
    """Add the page's files, read once: no path of a request ever touches the disk. Returns their paths."""
    paths = set()
    for file in files("vitrine.serving").joinpath("page").iterdir():
        name = file.name
        kind = TYPES[name.rsplit(".", 1)[1]]
        path = {"index.html": "/", "docs.html": "/docs"}.get(name, f"/page/{name}")
        paths.add(path)
        app.add_route(path, _file(file.read_bytes(), kind), methods=["GET"], include_in_schema=False)
    return frozenset(paths)


def _file(data: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()[:16]}"', "Cache-Control": "no-cache"}

    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=kind, headers=headers)

    return send
