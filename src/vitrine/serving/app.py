"""The web application: one route a question, every answer described in /openapi.json."""

import hashlib
import json
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Annotated, Any

from vitrine.errors import MissingExtraError
from vitrine.serving.guard import LOOPBACK, Guard
from vitrine.serving.hosting import Hosted
from vitrine.serving.prometheus import CONTENT_TYPE, SECONDS, Counter, Histogram, render
from vitrine.serving.refusals import RefusedError
from vitrine.serving.service import Service
from vitrine.serving.uploads import REQUEST_TIMEOUT, read_upload
from vitrine.version import __version__

try:
    from fastapi import FastAPI, Query, Request
    from fastapi.exceptions import RequestValidationError
    from pydantic import BaseModel
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, Response

    from vitrine.serving import schemas
except ImportError:
    raise MissingExtraError("fastapi", extra="serve", purpose="vitrine serve") from None

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
PICTURE_TYPES = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
REFUSALS = {
    401: "An API key is needed.",
    408: "The upload took too long.",
    413: "The upload, the picture or the headers are too large.",
    415: "What was sent is not a picture.",
    422: "The picture is damaged or empty, or a parameter makes no sense.",
    429: "Too many requests wait; Retry-After says when to come back.",
    503: "No answer in time, or the server is stopping.",
}
ModelName = Annotated[
    str | None, Query(max_length=200, description="Which model, by name; the first if left out.")
]


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
    add_state(app, service)
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


def add_questions(app: FastAPI, service: Service) -> None:
    """Add the routes that take a picture."""

    async def asked(request: Request, model: str | None, ask: Callable[..., Awaitable[Any]]) -> JSONResponse:
        with service.admission.entry() as entry:
            hosted = service.find(model)
            data = await read_upload(request.stream(), request.headers, limits=service.limits, entry=entry)
            return plain(await ask(hosted, data))

    def question(path: str, answer: type[BaseModel]) -> Callable[..., Any]:
        return app.post(
            path,
            response_model=answer,
            response_description="The answer.",
            responses=problems(*REFUSALS),
            openapi_extra=UPLOAD,
        )

    @question("/predict", schemas.Predicted)
    async def predict(
        request: Request,
        model: ModelName = None,
        top: Annotated[int, Query(ge=1, le=1000, description="How many classes.")] = 5,
        logits: Annotated[bool, Query(description="All logits too.")] = False,
    ) -> Response:
        """Name the most likely classes of a picture."""

        async def ask(hosted: Hosted, data: bytes) -> Any:
            return await service.predict(hosted, data, top=top, with_logits=logits)

        return await asked(request, model, ask)

    @question("/embed", schemas.Embedded)
    async def embed(request: Request, model: ModelName = None) -> Response:
        """Return the features of a picture: the input of the model's head."""
        return await asked(request, model, service.embed)

    @question("/explain", schemas.Explained)
    async def explain(
        request: Request,
        model: ModelName = None,
        layers: Annotated[
            str,
            Query(
                pattern=r"^(all|last|[0-9]{1,3}(,[0-9]{1,3}){0,63})$",
                description="all, last, or numbers from 0 with commas between.",
            ),
        ] = "last",
        matrix: Annotated[bool, Query(description="Attention between all patches too.")] = False,
    ) -> Response:
        """Return what the model attends to in a picture: heads, rollout, distances."""

        async def ask(hosted: Hosted, data: bytes) -> Any:
            return await service.explain(hosted, data, layers=layers, with_matrix=matrix)

        return await asked(request, model, ask)


def add_state(app: FastAPI, service: Service) -> None:
    """Add the routes that say what is here and how it stands."""

    @app.get("/models", response_model=schemas.Served, responses=problems(401))
    async def models() -> Response:
        """List the models in service, and the limits."""
        limits = service.limits
        return plain(
            {
                "models": [hosted.described() for hosted in service.models.values()],
                "awaited": service.awaited,
                "limits": {
                    name: getattr(limits, name)
                    for name in ("upload_bytes", "pixels", "whole_pixels", "waiting", "target_seconds")
                },
                "run": service.run.name if service.run else None,
                "version": __version__,
            }
        )

    @app.get("/figures", response_model=schemas.Figures, responses=problems(401, 422, 503))
    async def figures(model: ModelName = None) -> Response:
        """Return a model's filters and how alike its positions are."""
        hosted = service.find(model)
        return plain({"model": hosted.name, **await service.in_thread(hosted.figures)})

    @app.get("/run", response_model=schemas.Run, responses=problems(401, 404, 422))
    async def run(
        after: Annotated[int, Query(ge=0, le=2**53, description="`next` of the answer before.")] = 0,
    ) -> Response:
        """Return what a training run has recorded since."""
        if service.run is None:
            raise RefusedError(
                404, "no training run is watched here; serve a run folder: vitrine serve runs/latest"
            )
        records, end = await service.in_thread(service.run.read, after)
        return plain(
            {
                "name": service.run.name,
                "is_finished": service.run.is_finished,
                "records": records,
                "next": end,
            }
        )

    @app.get("/health", response_model=schemas.Health)
    async def health() -> Response:
        """Say that the process answers."""
        return plain({"status": "alive"})

    @app.get("/ready", response_model=schemas.Readiness, responses={503: {"model": schemas.Readiness}})
    async def ready() -> Response:
        """Say whether requests are taken, and how long the next one would wait."""
        stopping = service.admission.is_stopping
        workers_alive = all(worker.is_alive() for worker in service.batcher.workers)
        is_ready = workers_alive and not stopping
        status = "ready" if is_ready else "stopping" if stopping else "a worker has died"
        return plain(
            {
                "status": status,
                "waiting": service.admission.requests,
                "expected_wait_seconds": round(service.batcher.expected_wait(), 4),
                "target_seconds": service.limits.target_seconds,
            },
            status=200 if is_ready else 503,
        )


def add_metrics(app: FastAPI, service: Service, *, requests: Counter, seconds: Histogram) -> None:
    """Add /metrics."""

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems(401)},
    )
    async def metrics() -> Response:
        """Return counters for Prometheus."""
        kept = [requests, seconds, service.pictures, service.batch_sizes, service.batch_seconds]
        return Response(render([*kept, *service.gauges]), headers={"Content-Type": CONTENT_TYPE})


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


def add_refusals(app: FastAPI) -> None:
    """Let every error be one sentence in the same JSON."""

    def on_refusal(request: Request, error: Any) -> Response:
        # What is refused unheard may still be arriving; only a new connection is clean.
        close = {"Connection": "close"} if error.status in (REQUEST_TIMEOUT, 413) else {}
        return JSONResponse(error.body, status_code=error.status, headers={**error.headers, **close})

    def on_parameters(request: Request, error: Any) -> Response:
        first = error.errors()[0]
        name = str(first["loc"][-1])
        given = str(first.get("input"))[:80]
        return JSONResponse({"error": f"{name}: {first['msg']}, got {given!r}"}, status_code=422)

    def on_http(request: Request, error: Any) -> Response:
        path = request.url.path[:80]
        sentences = {
            404: f"there is nothing at {path}; /docs lists what there is",
            405: f"{path} is not asked with {request.method[:20]}; /docs says how",
        }
        sentence = sentences.get(error.status_code, str(error.detail))
        return JSONResponse({"error": sentence}, status_code=error.status_code, headers=error.headers)

    def on_bug(request: Request, error: Any) -> Response:
        return JSONResponse({"error": "something went wrong in the server; its log says what"}, 500)

    app.add_exception_handler(RefusedError, on_refusal)
    app.add_exception_handler(RequestValidationError, on_parameters)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_bug)


def plain(values: Any, *, status: int = 200) -> JSONResponse:
    """Answer with plain values as they are; the tests hold them against the schema, not every request."""
    return Answer(values, status_code=status)


class Answer(JSONResponse):
    """JSON without spaces."""

    def render(self, content: Any) -> bytes:
        """Write the content."""
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the refusals that a route may answer with."""
    return {
        status: {"model": schemas.Problem, "description": REFUSALS.get(status, "There is no such thing.")}
        for status in statuses
    }


_BINARY = {"schema": {"type": "string", "format": "binary"}}
UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One picture: JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF.",
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"file": {"type": "string", "format": "binary"}},
                    "required": ["file"],
                }
            },
            **dict.fromkeys(PICTURE_TYPES, _BINARY),
        },
    }
}
