"""uvicorn around the application: a bound socket, a graceful stop on SIGINT and SIGTERM."""

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from vitrine.errors import ConfigError, MissingExtraError, TryOption
from vitrine.serving.admission import Limits

try:
    import uvicorn

    from vitrine.serving.connections import (
        ACCEPTED_PER_TURN,
        CLOSED_WHEN_EXHAUSTED,
        Connections,
        ListeningSocket,
        Protocol,
    )
except ImportError:
    raise MissingExtraError("uvicorn", extra="serve", purpose="serving a model") from None

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
FREE_PORTS_TRIED = 20
BACKLOG = 2048  # uvicorn's own
# Time after the stop for requests that are still arriving on open connections.
LAST_REQUESTS_SECONDS = 0.5


def bind(host: str, port: int) -> ListeningSocket:
    """Open the listening socket; if the port is taken, suggest a free one."""
    opened = ListeningSocket(_family(host))
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(BACKLOG)  # clients that connect while the models are loading wait
    except OverflowError:
        opened.close()
        raise ConfigError(f"must be between 0 and 65535, got {port}", option="port") from None
    except OSError as error:
        opened.close()
        free = next((near for near in range(port + 1, port + FREE_PORTS_TRIED) if _is_free(host, near)), 0)
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            advice=[TryOption("port", "to listen on a free one", free)],
        ) from None
    return opened


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _is_free(host: str, port: int) -> bool:
    try:
        with socket.socket(_family(host)) as tried:
            tried.bind((host, port))
    except (OSError, OverflowError):
        return False
    return True


class Server(uvicorn.Server):
    """A server that stops gracefully: it finishes what is being computed and waits briefly for its clients."""

    def __init__(
        self, config: uvicorn.Config, *, connections: Connections, on_stop: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self.connections = connections
        self.on_stop = on_stop

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to stop: accept no new connections, answer requests on the open ones."""
        self.on_stop()
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle both signals for the block, if this is the main thread."""
        kinds = (signal.SIGINT, signal.SIGTERM)
        try:
            before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        except ValueError:  # not the main thread: the starter of the server sets should_exit
            yield
            return
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; running out of descriptors closes the least recently active connections."""
        for each in sockets or ():
            if isinstance(each, ListeningSocket):
                each.on_exhausted = partial(self.connections.close_oldest, CLOSED_WHEN_EXHAUSTED)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the accepted requests; stop waiting for clients after a few seconds."""
        await self._last_requests(sockets or [])
        closing = asyncio.create_task(self._close_waiting())
        await super().shutdown(sockets)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing

    async def _last_requests(self, sockets: list[socket.socket]) -> None:
        """Stop listening and answer what clients send before they learn of the stop.

        A connection that is closed just as its client sends a request loses it. Responses say `Connection: close`
        from now on, so busy connections end with their next response.
        """
        for _ in range(BACKLOG // ACCEPTED_PER_TURN):
            accepted = self.server_state.total_requests, len(self.connections)
            await asyncio.sleep(0)
            if accepted == (self.server_state.total_requests, len(self.connections)):
                break  # no client is waiting to be accepted
        for server in self.servers:
            server.close()
        for opened in sockets:
            opened.close()
        end = time.monotonic() + LAST_REQUESTS_SECONDS
        while len(self.connections) and time.monotonic() < end:
            await asyncio.sleep(0.02)

    async def _close_waiting(self) -> None:
        await asyncio.sleep(self.connections.limits.stop_seconds)
        while True:
            self.connections.close_waiting()
            await asyncio.sleep(0.1)


def make_server(app: Any, *, limits: Limits, on_stop: Callable[[], None] = lambda: None) -> Server:
    """Build a server for an application; `run(sockets=[...])` serves until it is stopped."""
    connections = Connections(limits)
    config = uvicorn.Config(
        app,
        http=partial(Protocol, open_connections=connections),  # type: ignore[arg-type]
        ws="none",
        loop="asyncio",
        log_level="error",  # a client's mistakes are counted in /metrics, not logged
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a client may send any, and nothing here reads them
        timeout_keep_alive=max(1, round(limits.read_seconds)),
        timeout_graceful_shutdown=max(1, round(limits.answer_seconds + 2 * limits.stop_seconds)),
        h11_max_incomplete_event_size=limits.header_bytes,
    )
    return Server(config, connections=connections, on_stop=on_stop)
