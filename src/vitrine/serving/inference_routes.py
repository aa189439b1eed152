"""The routes of the Open Inference Protocol: /v2, its health, its models, their inference, and reloading a model."""

import asyncio
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, Request
from numpy.typing import NDArray
from starlette.responses import Response
from torch import Tensor

from vitrine.serving.admission import RefusedError
from vitrine.serving.open_inference import (
    EXTENSIONS,
    HEADER,
    IMAGE,
    PIXELS,
    InferenceRequest,
    bad,
    parse_request,
    write_response,
)
from vitrine.serving.picture_routes import unless_disconnected
from vitrine.serving.responses import REFUSALS, CompactJSON, refusal_docs
from vitrine.serving.served_model import ServedModel
from vitrine.serving.service import Service
from vitrine.serving.uploads import read_body
from vitrine.version import __version__

NOT_FOUND = 404
VERSION = "1"
FORM_BYTES = 2**16
"""Bytes of the JSON around the images or pixels."""


def add_inference_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of the protocol."""

    @app.get("/v2")
    async def server() -> Response:
        """Describe the server."""
        return CompactJSON({"name": "vitrine", "version": __version__, "extensions": list(EXTENSIONS)})

    @app.get("/v2/health/live")
    async def live() -> Response:
        """Return 200 while the process responds."""
        return CompactJSON({"live": True})

    @app.get("/v2/health/ready")
    async def ready() -> Response:
        """Return 200 while requests are accepted and every model has weights."""
        is_ready = not service.admission.is_stopping and not service.awaited
        return CompactJSON({"ready": is_ready}, status_code=200 if is_ready else 503)

    @app.get("/v2/models/{name}", responses=refusal_docs(401, 404, 503))
    @app.get("/v2/models/{name}/versions/{version}", include_in_schema=False)
    async def model(name: str, version: str = VERSION) -> Response:
        """Describe a model: its inputs (give one of them) and outputs."""
        return CompactJSON(metadata_of(find(service, name, version)))

    @app.get("/v2/models/{name}/ready", responses=refusal_docs(401, 404, 503))
    @app.get("/v2/models/{name}/versions/{version}/ready", include_in_schema=False)
    async def model_ready(name: str, version: str = VERSION) -> Response:
        """Return 200 while a model accepts requests."""
        find(service, name, version)
        service.admission.require_room()
        return CompactJSON({"name": name, "ready": True})

    @app.post("/v2/models/{name}/infer", responses=refusal_docs(*REFUSALS, NOT_FOUND))
    @app.post("/v2/models/{name}/versions/{version}/infer", include_in_schema=False)
    async def infer(request: Request, name: str, version: str = VERSION) -> Response:
        """Compute the outputs of a model for some images."""
        with service.admission.upload() as upload:
            served = find(service, name, version)
            most = service.limits.upload_bytes + FORM_BYTES
            body = await read_body(
                request.stream(), request.headers, most=most, limits=service.limits, upload=upload
            )
            asked = parse_request(body, request.headers.get(HEADER))
            return await unless_disconnected(request, answer(service, served, asked))

    @app.post("/v2/repository/models/{name}/load", responses=refusal_docs(401, 404, 422, 503))
    async def load(name: str) -> Response:
        """Read a model's weights again; requests in flight end with the earlier ones."""
        find(service, name, VERSION)
        await service.pipeline.in_thread(service.reload, name)
        return CompactJSON({})


def find(service: Service, name: str, version: str) -> ServedModel:
    """Return a model by its name."""
    if version != VERSION:
        raise RefusedError(
            NOT_FOUND, f"{name[:80]!r} has no version {version[:20]!r}; its version is {VERSION}"
        )
    if name not in service.models and name not in service.awaited:
        known = ", ".join(map(repr, service.models))
        raise RefusedError(NOT_FOUND, f"no model is called {name[:80]!r}; the models are {known}")
    return service.find(name)


def metadata_of(served: ServedModel) -> dict[str, Any]:
    """Return the metadata of a model."""
    preprocess, classes = served.predictor.preprocess, served.predictor.num_classes
    is_dense = served.answers != "classes"  # this protocol has no outputs for masks or boxes
    outputs = [] if is_dense else [{"name": "embedding", "datatype": "FP32", "shape": [-1, served.width]}]
    if classes and not is_dense:
        outputs += [
            {"name": name, "datatype": "FP32", "shape": [-1, classes]} for name in ("logits", "probabilities")
        ]
        outputs.append({"name": "label", "datatype": "BYTES", "shape": [-1]})
        if served.predictor.trust.familiarity is not None:
            outputs.append({"name": "familiarity", "datatype": "FP32", "shape": [-1]})
    return {
        "name": served.name,
        "versions": [VERSION],
        "platform": "vitrine",
        "inputs": [
            {"name": IMAGE, "datatype": "BYTES", "shape": [-1]},
            {"name": PIXELS, "datatype": "FP32", "shape": [-1, *preprocess.input_shape]},
        ],
        "outputs": outputs,
    }


async def answer(service: Service, served: ServedModel, asked: InferenceRequest) -> Response:
    """Compute the requested outputs; images of several requests share batches."""
    if served.answers != "classes":
        raise bad(
            f"{served.name} answers with {served.answers}, which this protocol does not support; use /locate"
        )
    wanted = require_outputs(served, asked)
    given = asked.images if asked.pixels is None else asked.pixels
    assert given is not None  # a request has one of the two
    count = len(given)
    if asked.pixels is not None:
        shape = served.predictor.preprocess.input_shape
        if asked.pixels.shape[1:] != shape:
            raise bad(f"{PIXELS} must be (batch, {', '.join(map(str, shape))}), got {asked.pixels.shape}")
    if count > service.limits.batch:
        raise bad(f"a request holds at most {service.limits.batch} images, got {count}")
    with ExitStack() as places:
        for _ in range(count):
            places.enter_context(service.admission.request())
        rows = [await rows_of(service, served, asked, wanted=name) for name in wanted]
    outputs = outputs_of(served, dict(zip(wanted, rows, strict=True)))
    chosen = {name: outputs[name] for name in asked.outputs}
    body, length = write_response(model=served.name, request=asked, outputs=chosen)
    if length is None:
        return Response(body, media_type="application/json")
    return Response(body, media_type="application/octet-stream", headers={HEADER: str(length)})


def require_outputs(served: ServedModel, asked: InferenceRequest) -> list[str]:
    """Return what must be computed, scores and features; refuse an output that the model does not have."""
    known = {output["name"] for output in metadata_of(served)["outputs"]}
    missing = [name for name in asked.outputs if name not in known]
    if missing:
        raise bad(f"{served.name} has no output {missing[0]}; it has {', '.join(sorted(known))}")
    needs = {"features" if name == "embedding" else "scores" for name in asked.outputs}
    return sorted(needs)


async def rows_of(service: Service, served: ServedModel, asked: InferenceRequest, *, wanted: str) -> Tensor:
    """Return scores or features (B, ...)."""
    if asked.images is not None:
        task = served.features if wanted == "features" else served.scores
        work = [service.pipeline.computed(served, image, task) for image in asked.images]
    else:
        assert asked.pixels is not None
        task = served.tensor_features if wanted == "features" else served.tensor_scores
        work = [service.pipeline.computed_tensor(torch.from_numpy(row), task) for row in asked.pixels]
    return torch.stack(await asyncio.gather(*work))


def outputs_of(served: ServedModel, rows: dict[str, Tensor]) -> dict[str, NDArray[Any] | list[str]]:
    """Return all outputs that the rows allow, by name."""
    outputs: dict[str, NDArray[Any] | list[str]] = {}
    if "features" in rows:
        outputs["embedding"] = rows["features"].numpy()
    if "scores" in rows:
        predictor, scores = served.predictor, rows["scores"]
        logits = scores[:, : predictor.num_classes]
        outputs |= {"logits": logits.numpy(), "probabilities": predictor.probabilities(logits).numpy()}
        outputs["label"] = [predictor.classes[number] for number in logits.argmax(dim=1).tolist()]
        shares, _ = predictor.familiarity(scores)
        if shares[0] is not None:
            outputs["familiarity"] = np.asarray(shares, dtype=np.float32)
    return outputs
