"""The routes that say what is served here and how it stands."""

from typing import Annotated

from fastapi import FastAPI, Query
from starlette.responses import Response

from vitrine.serving import schemas
from vitrine.serving.answers import plain, problems
from vitrine.serving.prometheus import CONTENT_TYPE, Counter, Histogram, render
from vitrine.serving.questions import ModelName
from vitrine.serving.refusals import RefusedError
from vitrine.serving.service import Service
from vitrine.version import __version__


def add_contents(app: FastAPI, service: Service) -> None:
    """Add the routes that say what is served: models, their figures, a run's records."""

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
                "silent_seconds": service.run.silent_seconds(),
                "records": records,
                "next": end,
            }
        )


def add_health(app: FastAPI, service: Service) -> None:
    """Add the routes that say how the server stands."""

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
