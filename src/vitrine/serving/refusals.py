"""What a request can be refused for: a status and one plain sentence, the same JSON for every kind."""

from typing import Any

from vitrine.errors import DataError, ImageSizeError, VitrineError

TOO_LARGE, WRONG_KIND, UNREADABLE, TOO_MANY, UNAVAILABLE = 413, 415, 422, 429, 503


class RefusedError(VitrineError):
    """A request that gets no answer: its HTTP status, one sentence, and when to try again."""

    def __init__(self, status: int, sentence: str, *, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """What the client reads."""
        return {"error": self.sentence}

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with it: whole seconds until another try makes sense."""
        if self.retry_after is None:
            return {}
        return {"Retry-After": str(max(1, round(self.retry_after)))}


def refused(error: DataError) -> RefusedError:
    """Turn what the decoder says of a picture into a refusal."""
    return RefusedError(TOO_LARGE if isinstance(error, ImageSizeError) else UNREADABLE, str(error))
