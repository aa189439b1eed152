"""uvicorn round the application: bounded headers, bounded patience, a stop that finishes what is in flight."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vitrine.errors import ConfigError, MissingExtraError
from vitrine.serving.limits import Limits
from vitrine.serving.refusals import TOO_LARGE

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError:
    raise MissingExtraError("uvicorn", extra="serve", purpose="vitrine serve") from None

TOO_LARGE_HINT = 431
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
FREE_PORTS_TRIED = 20
BACKLOG = 2048  # uvicorn's own


def bind(host: str, port: int) -> socket.socket:
    """Open the socket, or say which port would do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(BACKLOG)  # who comes while the models are being loaded waits instead of being refused
    except OverflowError:
        opened.close()
        raise ConfigError(f"ports go from 0 to 65535, got {port}") from None
    except OSError as error:
        opened.close()
        free = next((near for near in range(port + 1, port + FREE_PORTS_TRIED) if _is_free(host, near)), 0)
        raise ConfigError(f"{host} port {port} cannot be used: {error.strerror}; try --port {free}") from None
    return opened


def _is_free(host: str, port: int) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            tried.bind((host, port))
    except (OSError, OverflowError):
        return False
    return True


class Protocol(H11Protocol):
    """HTTP/1.1 whose refusals are sentences, and which does not wait for ever for a request to begin."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._wait(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._waiting.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        answered = self.cycle
        super().on_response_complete()
        self._waiting.cancel()
        self._wait(answered)

    def _wait(self, answered: Any) -> None:
        self._waiting = self.loop.call_later(self.config.timeout_keep_alive, self._give_up, answered)

    def _give_up(self, answered: Any) -> None:
        if self.cycle is answered and not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has headers without end, in one sentence."""
        import h11

        error = sys.exc_info()[1]
        if getattr(error, "error_status_hint", 400) == TOO_LARGE_HINT:
            status, reason = TOO_LARGE, b"Content Too Large"
            most = self.config.h11_max_incomplete_event_size
            sentence = f"address and headers are larger than the limit of {most} bytes"
        else:
            status, reason, sentence = 400, b"Bad Request", "what was sent is not an HTTP request"
        body = json.dumps({"error": sentence}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        events = (
            h11.Response(status_code=status, headers=headers, reason=reason),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        try:
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # an answer is already on its way; closing is all that is left
        self.transport.close()


class Server(uvicorn.Server):
    """A server that ends well on SIGINT and SIGTERM instead of dying of them afterwards."""

    on_stop: Callable[[], None] = staticmethod(lambda: None)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to stop: requests that come now are refused, those inside are answered."""
        self.on_stop()
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Listen to both signals for the block, if this is the main thread."""
        kinds = (signal.SIGINT, signal.SIGTERM)
        try:
            before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        except ValueError:  # not the main thread: whoever started it sets should_exit
            yield
            return
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)


def make_server(app: Any, *, limits: Limits, on_stop: Callable[[], None] = lambda: None) -> Server:
    """Make a server for an application; `run(sockets=[...])` serves until it is told to stop."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # whoever sits in front may say anything in them, and nothing here reads them
        limit_concurrency=limits.connections,
        timeout_keep_alive=max(1, round(limits.read_seconds)),
        timeout_graceful_shutdown=max(1, round(limits.answer_seconds)),
        h11_max_incomplete_event_size=limits.header_bytes,
    )
    server = Server(config)
    server.on_stop = on_stop
    return server
