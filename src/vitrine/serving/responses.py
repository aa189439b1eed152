"""The form of every response: compact JSON, and one sentence in the same JSON for every error."""

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from vitrine.serving import schemas
from vitrine.serving.admission import TOO_LARGE, RefusedError

REQUEST_TIMEOUT = 408
# nginx's number for a client that went away before its response; nobody receives it, /metrics counts it.
CLIENT_CLOSED_REQUEST = 499
REFUSALS = {
    400: "The request has both a Content-Length and a Transfer-Encoding.",
    401: "An API key is required.",
    408: "The upload was too slow.",
    413: "The upload, the picture or the headers are too large.",
    415: "The upload is not a picture.",
    422: "The picture is damaged or empty, or a parameter is invalid.",
    429: "The queue is full; retry after the seconds in Retry-After.",
    503: "No result in time, or the server is stopping.",
}


class CompactJSON(JSONResponse):
    """JSON without spaces."""

    def render(self, content: Any) -> bytes:
        """Write the content."""
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def refusal_docs(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the refusals of a route for its OpenAPI entry."""
    return {
        status: {"model": schemas.Problem, "description": REFUSALS.get(status, "Not found.")}
        for status in statuses
    }


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error with one sentence in the same JSON."""

    def on_refusal(request: Request, error: Any) -> Response:
        # The rest of a refused upload may still be arriving, so the connection cannot be reused.
        close = {"Connection": "close"} if error.status in (REQUEST_TIMEOUT, TOO_LARGE) else {}
        return JSONResponse(error.body, status_code=error.status, headers={**error.headers, **close})

    def on_invalid_parameter(request: Request, error: Any) -> Response:
        first = error.errors()[0]
        name = str(first["loc"][-1])
        value = str(first.get("input"))[:80]
        return JSONResponse({"error": f"{name}: {first['msg']}, got {value!r}"}, status_code=422)

    def on_http_error(request: Request, error: Any) -> Response:
        path = request.url.path[:80]
        sentences = {
            404: f"nothing is served at {path}; /docs lists all routes",
            405: f"{path} does not support {request.method[:20]}; /docs lists all routes",
        }
        sentence = sentences.get(error.status_code, str(error.detail))
        return JSONResponse({"error": sentence}, status_code=error.status_code, headers=error.headers)

    def on_disconnect(request: Request, error: Any) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    def on_bug(request: Request, error: Any) -> Response:
        return JSONResponse({"error": "internal error; the server's log has the details"}, 500)

    app.add_exception_handler(RefusedError, on_refusal)
    app.add_exception_handler(RequestValidationError, on_invalid_parameter)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientDisconnect, on_disconnect)
    app.add_exception_handler(Exception, on_bug)
