"""What every request passes before anything else sees it: who may ask, from where, and how it is counted."""

import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from vitrine.serving.prometheus import Counter, Histogram
from vitrine.serving.refusals import TOO_LARGE, RefusedError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
# The page asks for a key only when it has to; a watchdog has none.
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
    """Checks headers, host, origin and key; adds security headers; counts answers by path and status."""

    def __init__(
        self,
        app: App,
        *,
        header_bytes: int,
        known_paths: frozenset[str],
        static_paths: frozenset[str],
        api_key: str | None,
        hosts: frozenset[str] | None,
        requests: Counter,
        seconds: Histogram,
    ) -> None:
        self.app = app
        self.header_bytes, self.api_key, self.hosts = header_bytes, api_key, hosts
        self.known_paths, self.static_paths = known_paths, static_paths
        self.requests, self.seconds = requests, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
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
                await answer(refusal, sending)
            else:
                await self.app(scope, receive, sending)
        finally:
            self.requests.add(path=label, status=str(status))
            self.seconds.observe(time.perf_counter() - begin, path=label)

    def refusal(self, scope: Scope) -> RefusedError | None:
        """Say why a request is not passed on, if it is not."""
        headers = scope["headers"]
        size = len(scope.get("query_string", b"")) + len(scope.get("raw_path") or b"")
        size += sum(len(name) + len(value) for name, value in headers)
        if size > self.header_bytes:
            return RefusedError(
                TOO_LARGE, f"address and headers are {size} bytes, more than the limit of {self.header_bytes}"
            )
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        host = found.get("host", "")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if self.hosts is not None and name.lower() not in self.hosts:
            # A page elsewhere can point its own name at this machine; the name gives it away.
            known = ", ".join(sorted(self.hosts))
            return RefusedError(421, f"this server answers as {known}, not as {host[:80]!r}; see --answer-as")
        if found.get("sec-fetch-site") == "cross-site" and scope["method"] not in ("GET", "HEAD"):
            return RefusedError(403, "requests from pages of other sites are not answered")
        path = scope["path"]
        if self.api_key is None or path in OPEN_PATHS or path in self.static_paths:
            return None
        given = found.get("x-api-key") or found.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode(), self.api_key.encode()):
            return None
        what = "is wrong" if given else "is needed"
        return RefusedError(401, f"an API key {what}; send it as the header X-API-Key")


async def answer(refusal: RefusedError, send: Send) -> None:
    """Send a refusal; the connection ends, since its body has not been read."""
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
