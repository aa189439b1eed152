"""Write the notices of a run to its log, and forward them to the current listener."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from datetime import datetime
from typing import TextIO

from vitrine.errors import PYTHON, Advice, VitrineError
from vitrine.runtime.progress import Listener, current_listener, listening
from vitrine.runtime.run_folder import RunFolder


class LogFile:
    """A listener that writes notices with their time, and forwards everything."""

    def __init__(self, file: TextIO, *, then: Listener | None) -> None:
        self._file, self._then = file, then
        self._what, self._total, self._done = "", None, 0  # type: tuple[str, int | None, int]

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        """Remember the name and length of the work."""
        self._what, self._total, self._done = what, total, done
        if self._then is not None:
            self._then.start(what, total, done)

    def advance(self, steps: int, note: str = "") -> None:
        """Write a line if there is a note."""
        self._done += steps
        if note:
            of = "" if self._total is None else f"/{self._total:,}"
            self.write(f"{self._what}: {self._done:,}{of}, {note}")
        if self._then is not None:
            self._then.advance(steps, note)

    def lengthen(self, steps: int) -> None:
        """Remember the new length."""
        if self._total is not None:
            self._total += steps
        if self._then is not None:
            self._then.lengthen(steps)

    def finish(self) -> None:
        """Pass it on."""
        if self._then is not None:
            self._then.finish()

    def notice(self, text: str, advice: Sequence[Advice] = ()) -> None:
        """Write a sentence, and forward it."""
        self.write("; ".join([text, *(one.text(PYTHON) for one in advice)]))
        if self._then is not None:
            self._then.notice(text, advice)

    def present(self, record: object) -> None:
        """Write a record as one line per field, and forward it."""
        self.write(
            "\n".join([f"{_words(type(record).__name__)}:", *(f"  {line}" for line in fields_of(record))])
        )
        if self._then is not None:
            self._then.present(record)

    def write(self, text: str) -> None:
        """Write a line with its time, immediately, so that it survives a crash; a full disk is reported elsewhere."""
        with contextlib.suppress(OSError):
            self._file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")
            self._file.flush()


@contextmanager
def logged_to(run: RunFolder, *, is_first: bool = True) -> Iterator[None]:
    """Append the notices of the block, and its error, to a run's log; only on the first process."""
    if not is_first:
        yield
        return
    file = run.open_log()
    log = LogFile(file, then=current_listener())
    try:
        with listening(log):
            yield
    except VitrineError as error:
        log.write(str(error))
        raise
    finally:
        with contextlib.suppress(OSError):
            file.close()


def fields_of(record: object) -> Iterator[str]:
    """Yield one line per field of a record, such as `image size: 224, 224`; fields without a value are skipped."""
    if not dataclasses.is_dataclass(record):
        yield str(record)
        return
    for field in dataclasses.fields(record):
        value, name = getattr(record, field.name), _words(field.name)
        if dataclasses.is_dataclass(value) and "__str__" not in type(value).__dict__:
            yield f"{name}:"
            yield from (f"  {line}" for line in fields_of(value))
        elif text := _text(value):
            yield f"{name}: {text}"


def _text(value: object) -> str:
    if value is None or value is False or (isinstance(value, Sized) and not len(value)):
        return ""
    if isinstance(value, int | float):
        return "yes" if value is True else f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(one)}" for key, one in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(_text(one) or "none" for one in value)
    return str(value)


def _words(name: str) -> str:
    """Write the name of a class or a field as words: `RunPlan` is `Run plan`, `num_images` is `num images`."""
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: f" {match[1].lower()}", name).replace("_", " ")
