"""What every route answers with: plain JSON, and one sentence in the same shape where there is no answer."""

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from vitrine.serving import schemas
from vitrine.serving.refusals import RefusedError
from vitrine.serving.uploads import REQUEST_TIMEOUT

REFUSALS = {
    401: "An API key is needed.",
    408: "The upload took too long.",
    413: "The upload, the picture or the headers are too large.",
    415: "What was sent is not a picture.",
    422: "The picture is damaged or empty, or a parameter makes no sense.",
    429: "Too many requests wait; Retry-After says when to come back.",
    503: "No answer in time, or the server is stopping.",
}


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
