"""Every open connection: their number and idle time are limited, and a client that stops reading is cut off.

Whoever waits for its client (an idle connection, an upload, a response that is not being read) can be closed at any
time; a connection whose request is being computed is never closed by the server.
"""

import asyncio
import errno
import json
import os
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from vitrine.errors import MissingExtraError
from vitrine.serving.admission import TOO_LARGE, Limits

try:
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError:
    raise MissingExtraError("uvicorn", extra="serve", purpose="serving a model") from None

if sys.platform != "win32":
    import resource

TOO_LARGE_HINT = 431
# File descriptors reserved for everything but connections: weights of a run, records, the listening socket.
SPARE_DESCRIPTORS = 64
# Connections accepted per turn of the event loop, which closes descriptors between two turns.
ACCEPTED_PER_TURN = 16
# Connections closed at once if descriptors run out nevertheless.
CLOSED_WHEN_EXHAUSTED = 16
EXHAUSTED_PAUSE_SECONDS = 0.01
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
LEAST_CONNECTIONS = 4


class Connections:
    """The open connections of one server, the least recently active first; used from the event loop alone."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.limit = min(limits.connections, max(LEAST_CONNECTIONS, free_descriptors() - SPARE_DESCRIPTORS))
        self._open: OrderedDict[Protocol, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "Protocol") -> None:
        """Count a new connection; close the least recently active ones above the limit, or else the new one."""
        self._open[connection] = None
        excess = len(self._open) - self.limit
        if excess > 0 and self.close_oldest(excess, keep=connection) < excess:
            self._close(connection)

    def discard(self, connection: "Protocol") -> None:
        """Forget a connection that is closed."""
        self._open.pop(connection, None)

    def touch(self, connection: "Protocol") -> None:
        """Record that a client has just sent or read something."""
        if connection in self._open:
            self._open.move_to_end(connection)

    def close_oldest(self, count: int, *, keep: "Protocol | None" = None) -> int:
        """Close up to `count` connections that wait for their clients, the least recently active first."""
        waiting = (each for each in self._open if each is not keep and each.waits_for_client)
        chosen = list(islice(waiting, count))
        for each in chosen:
            self._close(each)
        return len(chosen)

    def bound_unsent(self) -> None:
        """Close connections, the least recently active first, until unread responses fit into their limit."""
        unsent = {each: each.transport.get_write_buffer_size() for each in self._open}
        excess = sum(unsent.values()) - self.limits.unsent_bytes
        for each, size in unsent.items():
            if excess <= 0:
                return
            if size:
                self._close(each)
                excess -= size

    def close_waiting(self) -> None:
        """Close every connection that waits for its client."""
        self.close_oldest(len(self._open))

    def _close(self, connection: "Protocol") -> None:
        # Its descriptor is closed in the next turn of the event loop; from now on it is not counted.
        self.discard(connection)
        connection.transport.abort()


def free_descriptors() -> int:
    """Return how many files and sockets this process may still open."""
    if sys.platform == "win32":  # has no such limit
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    folder = Path("/proc/self/fd") if sys.platform.startswith("linux") else Path("/dev/fd")
    return soft - sum(1 for _ in folder.iterdir())


class ListeningSocket(socket.socket):
    """A listening TCP socket whose `accept` survives running out of descriptors.

    asyncio would log one traceback per attempt, 2,048 times a second. One descriptor is kept in reserve instead: it
    accepts the connection while others are being closed.
    """

    def __init__(self, family: int) -> None:
        # asyncio sets TCP_NODELAY only if the protocol is named; without it each response waits 40 ms.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.on_exhausted: Callable[[], int] = lambda: 0
        self._accepted = 0
        self._reserve: int | None = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept one connection; after a few, let the event loop take its turn."""
        self._accepted += 1
        if self._accepted > ACCEPTED_PER_TURN:
            self._accepted = 0
            raise BlockingIOError
        try:
            return super().accept()
        except BlockingIOError:
            self._accepted = 0
            raise
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
        self._accepted = 0
        return self._accept_with_reserve(has_closed_others=self.on_exhausted() > 0)

    def _accept_with_reserve(self, *, has_closed_others: bool) -> tuple[socket.socket, Any]:
        """Accept with the reserved descriptor; the new connection is closed if no other can be."""
        if self._reserve is None:
            self._open_reserve()
            raise BlockingIOError
        self._close_reserve()
        connection, address = super().accept()
        if has_closed_others:
            return connection, address
        connection.close()
        self._open_reserve()
        raise BlockingIOError

    def _open_reserve(self) -> None:
        try:
            self._reserve = os.open(os.devnull, os.O_RDONLY)
        except OSError:  # wait for others to close descriptors, without a busy loop
            time.sleep(EXHAUSTED_PAUSE_SECONDS)

    def _close_reserve(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    def close(self) -> None:
        """Close the socket and the reserved descriptor."""
        self._close_reserve()
        super().close()


class Protocol(H11Protocol):
    """HTTP/1.1 that refuses requests with a sentence and waits for every client for a limited time only."""

    def __init__(self, *arguments: Any, open_connections: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.open_connections = open_connections
        self.limits = open_connections.limits
        self._idle_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has to act next: send a request, the rest of it, or read a response."""
        cycle = self.cycle
        return cycle is None or cycle.more_body or cycle.response_complete or self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.open_connections.add(self)
        self._start_idle_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self.open_connections.discard(self)
        for timer in (self._idle_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what the client sent."""
        self.open_connections.touch(self)
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        answered = self.cycle
        super().on_response_complete()
        if self.cycle is answered:
            self._start_idle_timer()

    def _start_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self.loop.call_later(self.limits.read_seconds, self._close_if_idle, self.cycle)

    def _close_if_idle(self, answered: Any) -> None:
        if self.cycle is answered and not self.flow.write_paused and not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        """Watch a client that reads more slowly than the server writes."""
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())
        self.open_connections.bound_unsent()

    def resume_writing(self) -> None:
        """The client has read almost everything."""
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()

    def _watch_reader(self, unsent: int) -> None:
        self._unread_timer = self.loop.call_later(self.limits.stall_seconds, self._require_reader, unsent)

    def _require_reader(self, unsent_before: int) -> None:
        """Cut off a client that has read less than the least rate since the last look."""
        unsent = self.transport.get_write_buffer_size()
        if unsent_before - unsent < self.limits.bytes_per_second * self.limits.stall_seconds:
            self.transport.abort()
            return
        self.open_connections.touch(self)
        self._watch_reader(unsent)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, or endless headers, with one sentence."""
        error = sys.exc_info()[1]
        if getattr(error, "error_status_hint", 400) == TOO_LARGE_HINT:
            status, reason = TOO_LARGE, b"Content Too Large"
            sentence = f"address and headers are larger than the limit of {self.limits.header_bytes} bytes"
        else:
            status, reason, sentence = 400, b"Bad Request", "this is not an HTTP request"
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
            pass  # a response is already on its way; closing is all that is left
        self.transport.close()
