"""The outermost layer: checks who sends a request and from where, adds security headers, counts responses."""

import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from datetime import UTC, datetime
from typing import Any

from vitrine.serving.admission import TOO_LARGE, RefusedError
from vitrine.serving.batching import current_trace
from vitrine.serving.metrics import Metrics
from vitrine.serving.opentelemetry import RequestTrace, Traces

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
# Health checks need no key.
OPEN_PATHS = frozenset({"/health", "/ready", "/v2/health/live", "/v2/health/ready"})
INFER = "/v2/models/{name}/infer"
INFER_PATH = re.compile(r"/v2/models/[^/]+(/versions/[^/]+)?/infer")
REQUEST_ID = "X-Request-ID"
CLOSE = (b"connection", b"close")
# Request ids that are accepted from clients; others could forge a line of the log.
SAFE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
requests_log = logging.getLogger("vitrine.requests")
"""Logs one line of JSON per request if a handler is added; `vitrine.serve` with `log` adds one."""
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}


class Guard:
    """Checks headers, host, origin and key; adds security headers; counts responses by path and status."""

    def __init__(
        self,
        app: App,
        *,
        header_bytes: int,
        known_paths: frozenset[str],
        static_paths: frozenset[str],
        api_key: str | None,
        hosts: frozenset[str] | None,
        metrics: Metrics,
        root_path: str = "",
        is_stopping: Callable[[], bool] = lambda: False,
        traces: Traces | None = None,
    ) -> None:
        self.app, self.is_stopping, self.traces = app, is_stopping, traces
        self.header_bytes, self.hosts, self.root_path = header_bytes, hosts, root_path
        # Several keys, separated by commas, allow replacing a key without downtime.
        keys = None if api_key is None else [key.strip().encode() for key in api_key.split(",")]
        self.api_keys = None if keys is None else [key for key in keys if key]
        self.known_paths, self.static_paths = known_paths, static_paths
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # the server below drops the body
            scope = {**scope, "method": "GET"}
        begin = time.perf_counter()
        scope = self._below_root(scope)
        identifier = request_id(scope["headers"])
        label = self._label(scope["path"])
        trace = self._trace(scope, label, identifier)
        tracing = current_trace.set(trace)
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = {**SECURITY_HEADERS, REQUEST_ID: identifier}
                extra = [(name.lower().encode(), value.encode()) for name, value in added.items()]
                if self.is_stopping() and CLOSE not in message.get("headers", []):
                    extra.append(CLOSE)
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        try:
            refusal = self.refusal(scope)
            if refusal is not None:
                await send_refusal(refusal, sending)
            else:
                await self.app(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - begin
            self.metrics.count_request(path=label, status=status, seconds=seconds)
            current_trace.reset(tracing)
            if trace is not None:
                trace.end(status=status)
            log_request(
                scope,
                identifier,
                status=status,
                seconds=seconds,
                trace_id=None if trace is None else trace.id,
            )

    def _trace(self, scope: Scope, label: str, identifier: str) -> RequestTrace | None:
        """Begin to trace a request; health checks and the page's files are not traced."""
        if self.traces is None or scope["path"] in OPEN_PATHS or scope["path"] in self.static_paths:
            return None
        return self.traces.begin(scope, route=label, identifier=identifier)

    def _below_root(self, scope: Scope) -> Scope:
        """Remove the proxy's path; proxies that already removed it work too."""
        path = scope["path"]
        if not self.root_path or not (path + "/").startswith(self.root_path + "/"):
            return scope
        return {**scope, "path": path.removeprefix(self.root_path) or "/"}

    def _label(self, path: str) -> str:
        """Return what /metrics calls a path: a bounded number of names."""
        if path in self.known_paths:
            return path
        if path in self.static_paths:
            return "static"
        return INFER if INFER_PATH.fullmatch(path) else "other"

    def refusal(self, scope: Scope) -> RefusedError | None:
        """Return why a request is refused, if it is."""
        headers = scope["headers"]
        size = len(scope.get("query_string", b"")) + len(scope.get("raw_path") or b"")
        size += sum(len(name) + len(value) for name, value in headers)
        if size > self.header_bytes:
            return RefusedError(
                TOO_LARGE, f"address and headers are {size} bytes, more than the limit of {self.header_bytes}"
            )
        values = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        if "content-length" in values and "transfer-encoding" in values:
            # A proxy might use one header and this server the other (request smuggling; RFC 9112, section 6.1).
            return RefusedError(400, "a request must not have both a Content-Length and a Transfer-Encoding")
        return self._foreign(scope, values) or self._wrong_key(scope, values)

    def _foreign(self, scope: Scope, headers: dict[str, str]) -> RefusedError | None:
        """Refuse requests that another site's page sends."""
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if self.hosts is not None and name.lower() not in self.hosts:
            # Another site can point its own name at this machine (DNS rebinding).
            known = ", ".join(sorted(self.hosts))
            return RefusedError(421, f"this server answers as {known}, not as {host[:80]!r}; see answer_as")
        if headers.get("sec-fetch-site") == "cross-site" and scope["method"] != "GET":
            return RefusedError(403, "requests from pages of other sites are refused")
        return None

    def _wrong_key(self, scope: Scope, headers: dict[str, str]) -> RefusedError | None:
        """Refuse requests without the key, where one is set."""
        path = scope["path"]
        if self.api_keys is None or path in OPEN_PATHS or path in self.static_paths:
            return None
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if any(hmac.compare_digest(key.encode(), known) for known in self.api_keys):
            return None
        problem = "the API key is wrong" if key else "an API key is required"
        return RefusedError(401, f"{problem}; send it in the header X-API-Key")


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the name that the client or its proxy gave the request, or a new one."""
    for name, value in headers:
        if name == b"x-request-id" and SAFE_ID.fullmatch(text := value.decode("latin-1")):
            return text
    return uuid.uuid4().hex


def log_request(
    scope: Scope, identifier: str, *, status: int, seconds: float, trace_id: str | None = None
) -> None:
    """Log one request: never its query, which may contain private data."""
    if not requests_log.isEnabledFor(logging.INFO):
        return
    client = scope.get("client")
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": identifier,
        "method": scope["method"],
        "path": scope["path"][:200],
        "status": status,
        "milliseconds": round(1000 * seconds, 2),
        "client": client[0] if client else None,
    }
    if trace_id is not None:
        entry["trace"] = trace_id
    requests_log.info(json.dumps(entry))


async def send_refusal(refusal: RefusedError, send: Send) -> None:
    """Send a refusal and close the connection, since the body has not been read."""
    body = json.dumps(refusal.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    await send(
        {
            "type": "http.response.start",
            "status": refusal.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
