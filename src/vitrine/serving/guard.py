"""The outermost layer: checks who sends a request and from where, adds security headers, counts responses."""

import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from vitrine.serving.admission import TOO_LARGE, RefusedError
from vitrine.serving.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
# A watchdog has no key.
OPEN_PATHS = frozenset({"/health", "/ready"})
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
    ) -> None:
        self.app = app
        self.header_bytes, self.api_key, self.hosts = header_bytes, api_key, hosts
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
        path = scope["path"]
        label = path if path in self.known_paths else "static" if path in self.static_paths else "other"
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        try:
            refusal = self.refusal(scope)
            if refusal is not None:
                await send_refusal(refusal, sending)
            else:
                await self.app(scope, receive, sending)
        finally:
            self.metrics.count_request(path=label, status=status, seconds=time.perf_counter() - begin)

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
            # A proxy in front may believe the one and this server the other (RFC 9112, section 6.1).
            return RefusedError(400, "a request has a Content-Length or a Transfer-Encoding, not both")
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
        if self.api_key is None or path in OPEN_PATHS or path in self.static_paths:
            return None
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(key.encode(), self.api_key.encode()):
            return None
        problem = "the API key is wrong" if key else "an API key is required"
        return RefusedError(401, f"{problem}; send it in the header X-API-Key")


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
