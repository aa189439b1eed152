"""Admission to the server: its limits, how it refuses a request, and the count of requests and bytes it holds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vitrine.errors import ConfigError, DataError, ImageSizeError, VitrineError

TOO_LARGE, WRONG_KIND, UNREADABLE, TOO_MANY, UNAVAILABLE = 413, 415, 422, 429, 503
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one server; no client can make it hold more."""

    upload_bytes: int = 16 * MIB
    """Bytes of one picture as it is sent."""
    pixels: int = 50_000_000
    """Pixels of one JPEG, which is decoded at a fraction of its size."""
    waiting: int = 256
    """Uploaded pictures that are queued or being computed; further requests are answered with 429."""
    held_bytes: int = 256 * MIB
    """Bytes of all uploads in memory."""
    unsent_bytes: int = 256 * MIB
    """Bytes of all responses that clients have not read yet."""
    header_bytes: int = 16 * 1024
    read_seconds: float = 20.0
    """Time for a whole request to arrive, and maximum time that a connection may be idle."""
    stall_seconds: float = 5.0
    """Time that a client may lag behind `bytes_per_second` while it uploads or reads a response."""
    bytes_per_second: int = 16 * 1024
    answer_seconds: float = 60.0
    """Time from the end of the upload to the response."""
    stop_seconds: float = 3.0
    """Time that a stopping server waits for clients to send or read; it always finishes running computations."""
    target_seconds: float = 0.5
    """Target latency: a batch is only as large as the server can compute within half of it."""
    batch: int = 32
    """Maximum pictures per batch, even if the target latency allows more."""
    connections: int = 1024
    """Maximum open connections; one more closes the least recently active one that waits for its client."""

    @property
    def whole_pixels(self) -> int:
        """Pixels of one picture in a format other than JPEG: it is decoded whole, at up to 20 bytes per pixel."""
        return self.pixels // 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"must be above 0, got {value}", option=name)
        if self.held_bytes < self.upload_bytes:
            raise ConfigError(
                f"must hold at least one upload of {self.upload_bytes} bytes, got {self.held_bytes}",
                option="held_bytes",
            )


class RefusedError(VitrineError):
    """A request that the server refuses: the HTTP status, one sentence, and when to try again."""

    def __init__(self, status: int, sentence: str, *, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The JSON that the client reads."""
        return {"error": self.sentence}

    @property
    def headers(self) -> dict[str, str]:
        """Retry-After in whole seconds, if a retry makes sense."""
        if self.retry_after is None:
            return {}
        return {"Retry-After": str(max(1, round(self.retry_after)))}


def refusal_of(error: DataError) -> RefusedError:
    """Turn a decoder's error into a refusal."""
    return RefusedError(TOO_LARGE if isinstance(error, ImageSizeError) else UNREADABLE, str(error))


class Admission:
    """Counts requests and bytes; used from the event loop alone, so it needs no lock."""

    def __init__(self, limits: Limits, *, expected_wait: Callable[[], float]) -> None:
        self.limits = limits
        self.expected_wait = expected_wait
        self.requests = 0
        self.held_bytes = 0
        self.is_stopping = False
        self.is_refusing = False

    def begin_stop(self) -> None:
        """Report that the server is stopping; requests that still arrive are answered."""
        self.is_stopping = True

    def close(self) -> None:
        """Refuse all further requests."""
        self.is_stopping = self.is_refusing = True

    def require_room(self) -> None:
        """Refuse a request once the server has stopped or while its queue is full."""
        if self.is_refusing:
            raise RefusedError(UNAVAILABLE, "the server is stopping", retry_after=5)
        if self.requests >= self.limits.waiting:
            raise RefusedError(
                TOO_MANY,
                f"{self.requests} requests are waiting, which is the limit; try again later",
                retry_after=self.expected_wait(),
            )

    @contextmanager
    def upload(self) -> Iterator["Upload"]:
        """Count the bytes of one upload for the block; refuse it before it is read where the queue is full."""
        self.require_room()
        upload = Upload(self)
        try:
            yield upload
        finally:
            upload.release()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one request whose upload is complete, or refuse it: slow uploads take no place in the queue."""
        self.require_room()
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1


class Upload:
    """The bytes that one upload holds."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0

    def hold(self, count: int) -> None:
        """Take `count` more bytes, or refuse if all uploads together would hold too much."""
        admission = self._admission
        if admission.held_bytes + count > admission.limits.held_bytes:
            raise RefusedError(
                UNAVAILABLE,
                f"uploads hold {admission.held_bytes} bytes of at most {admission.limits.held_bytes}; "
                "try again later",
                retry_after=admission.expected_wait(),
            )
        admission.held_bytes += count
        self._bytes += count

    def release(self) -> None:
        """Give the bytes back."""
        self._admission.held_bytes -= self._bytes
        self._bytes = 0
