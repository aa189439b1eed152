"""The routes that take a picture."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from vitrine.serving import schemas
from vitrine.serving.answers import REFUSALS, plain, problems
from vitrine.serving.hosting import Hosted
from vitrine.serving.service import Service
from vitrine.serving.uploads import read_upload

PICTURE_TYPES = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
ModelName = Annotated[
    str | None, Query(max_length=200, description="Which model, by name; the first if left out.")
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
