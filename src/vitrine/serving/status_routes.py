"""The routes about the server itself: the models, a training run's records, health and metrics."""

from typing import Annotated

from fastapi import FastAPI, Query
from starlette.responses import Response

from vitrine.serving import schemas
from vitrine.serving.admission import RefusedError
from vitrine.serving.metrics import CONTENT_TYPE
from vitrine.serving.picture_routes import ModelName
from vitrine.serving.responses import CompactJSON, refusal_docs
from vitrine.serving.service import Service
from vitrine.version import __version__


def add_content_routes(app: FastAPI, service: Service) -> None:
    """Add the routes that describe the served models and their figures."""

    @app.get("/models", response_model=schemas.Served, responses=refusal_docs(401))
    async def models() -> Response:
        """List the served models and the server's limits."""
        limits = service.limits
        return CompactJSON(
            {
                "models": [served.described() for served in service.models.values()],
                "awaited": service.awaited,
                "limits": {
                    name: getattr(limits, name)
                    for name in ("upload_bytes", "pixels", "whole_pixels", "waiting", "target_seconds")
                },
                "run": service.run.name if service.run else None,
                "version": __version__,
            }
        )

    @app.get("/figures", response_model=schemas.Figures, responses=refusal_docs(401, 422, 503))
    async def figures(model: ModelName = None) -> Response:
        """Return a model's embedding filters and the similarity of its position embeddings."""
        served = service.find(model)
        return CompactJSON({"model": served.name, **await service.pipeline.in_thread(served.figures)})


def add_run_route(app: FastAPI, service: Service) -> None:
    """Add the route to the records of a training run."""

    @app.get("/run", response_model=schemas.Run, responses=refusal_docs(401, 404, 422))
    async def run(
        after: Annotated[int, Query(ge=0, le=2**53, description="`next` of the previous response.")] = 0,
    ) -> Response:
        """Return the new records of a training run."""
        if service.run is None:
            raise RefusedError(404, "no training run is served here; serve a run folder to see its curves")
        records, end = await service.pipeline.in_thread(service.run.read, after)
        return CompactJSON(
            {
                "name": service.run.name,
                "is_finished": service.run.is_finished,
                "silent_seconds": service.run.silent_seconds(),
                "records": records,
                "next": end,
            }
        )


def add_health_routes(app: FastAPI, service: Service) -> None:
    """Add the routes for health checks and Prometheus."""

    @app.get("/health", response_model=schemas.Health)
    async def health() -> Response:
        """Return 200 while the process responds."""
        return CompactJSON({"status": "alive"})

    @app.get("/ready", response_model=schemas.Readiness, responses={503: {"model": schemas.Readiness}})
    async def ready() -> Response:
        """Return 200 while requests are accepted, and the expected wait of the next one."""
        stopping = service.admission.is_stopping
        workers_alive = all(worker.is_alive() for worker in service.batcher.workers)
        is_ready = workers_alive and not stopping
        status = "ready" if is_ready else "stopping" if stopping else "a worker has died"
        return CompactJSON(
            {
                "status": status,
                "waiting": service.admission.requests,
                "expected_wait_seconds": round(service.batcher.expected_wait(), 4),
                "target_seconds": service.limits.target_seconds,
            },
            status_code=200 if is_ready else 503,
        )

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **refusal_docs(401)},
    )
    async def metrics() -> Response:
        """Return the counters in Prometheus' text format."""
        return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})
