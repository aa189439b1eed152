"""The routes that take a picture: /predict, /locate, /embed, /explain."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from vitrine.serving import schemas
from vitrine.serving.responses import REFUSALS, CompactJSON, refusal_docs
from vitrine.serving.served_model import ServedModel
from vitrine.serving.service import Service
from vitrine.serving.uploads import read_upload

PICTURE_TYPES = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
ModelName = Annotated[
    str | None, Query(max_length=200, description="Name of the model [default: the first one].")
]
LayerNumbers = Annotated[
    str,
    Query(
        pattern=r"^(all|last|[0-9]{1,3}(,[0-9]{1,3}){0,63})$",
        description="all, last, or layer numbers from 0, separated by commas.",
    ),
]
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


def add_picture_routes(app: FastAPI, service: Service) -> None:
    """Add the routes that take a picture."""

    @picture_route(app, "/predict", schemas.Predicted)
    async def predict(
        request: Request,
        model: ModelName = None,
        top: Annotated[int, Query(ge=1, le=1000, description="Number of classes.")] = 5,
        logits: Annotated[bool, Query(description="Include all logits.")] = False,
        coverage: Annotated[
            float | None,
            Query(
                gt=0,
                lt=1,
                description="Also return the classes that contain the true one with this probability.",
            ),
        ] = None,
    ) -> Response:
        """Classify a picture: its most likely classes with their probabilities."""
        compute = functools.partial(service.predict, top=top, with_logits=logits, coverage=coverage)
        return await respond(request, service, model, compute)

    @picture_route(app, "/locate", schemas.Located)
    async def locate(
        request: Request,
        model: ModelName = None,
        least: Annotated[float, Query(ge=0, le=1, description="Minimum score of a box.")] = 0.3,
    ) -> Response:
        """Locate objects with a model of masks or boxes: the class of every pixel, or a box per object."""
        return await respond(request, service, model, functools.partial(service.locate, least=least))

    @picture_route(app, "/embed", schemas.Embedded)
    async def embed(request: Request, model: ModelName = None) -> Response:
        """Compute the features of a picture: the input of the classification head."""
        return await respond(request, service, model, service.embed)

    @picture_route(app, "/explain", schemas.Explained)
    async def explain(
        request: Request,
        model: ModelName = None,
        layers: LayerNumbers = "last",
        matrix: Annotated[bool, Query(description="Include the attention between all patches.")] = False,
    ) -> Response:
        """Show what the model attends to in a picture: attention maps, rollout and attention distance."""
        compute = functools.partial(service.explain, layers=layers, with_matrix=matrix)
        return await respond(request, service, model, compute)


def picture_route(app: FastAPI, path: str, result: type[BaseModel]) -> Callable[..., Any]:
    """Return the decorator of a route that takes a picture and answers with `result`."""
    return app.post(
        path,
        response_model=result,
        response_description="The result.",
        responses=refusal_docs(*REFUSALS),
        openapi_extra=UPLOAD,
    )


async def respond(
    request: Request,
    service: Service,
    model: str | None,
    compute: Callable[[ServedModel, bytes], Coroutine[Any, Any, Any]],
) -> JSONResponse:
    """Read the picture within the limits and answer with the result of `compute`."""
    with service.admission.upload() as upload:
        served = service.find(model)
        data = await read_upload(request.stream(), request.headers, limits=service.limits, upload=upload)
        with service.admission.request():
            return CompactJSON(await unless_disconnected(request, compute(served, data)))


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Wait for the result, or cancel the work as soon as the client goes away."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    computing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    waiting: list[Awaitable[Any]] = [computing, leaving]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        if computing.done():
            return computing.result()
        raise ClientDisconnect
    finally:
        computing.cancel()
        leaving.cancel()
