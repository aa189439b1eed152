"""The exception tree: one class per kind of mistake. Nothing else lives here.

Each class is also the built-in exception that Python code expects (`ValueError`, `FileNotFoundError`, ...), so that
callers can catch what they know. An error carries data, not command-line words: `option` is the name of the Python
parameter that was wrong, `suggestions` are parameters that would help. `str(error)` spells them as Python does; the
command line spells the same fields as options.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Suggestion:
    """A parameter that would help: `Suggestion("out", "to write elsewhere")`."""

    option: str
    """Name of the Python parameter."""
    purpose: str
    """What it does, from "to ...": "to continue with the data as it is now"."""
    value: Any = None
    """The value to pass; None where any will do. True for a flag."""

    def __str__(self) -> str:
        return self.text(python_spelling)

    def text(self, spell: Callable[[str, Any], str]) -> str:
        """Return the sentence with the parameter spelled by `spell(option, value)`."""
        return f"use {spell(self.option, self.value)} {self.purpose}"


def python_spelling(option: str, value: Any = None) -> str:
    """Spell a parameter as Python code does: `out`, `overwrite=True`."""
    return option if value is None else f"{option}={value!r}"


class VitrineError(Exception):
    """One sentence: what is wrong with the given value, and what to do.

    The command line prints it without a traceback and exits with `exit_code`.
    """

    exit_code = 2

    def __init__(
        self, problem: str, *, option: str | None = None, suggestions: Sequence[Suggestion] = ()
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.option = option
        self.suggestions = tuple(suggestions)

    def __str__(self) -> str:
        return self.text(python_spelling)

    def text(self, spell: Callable[[str, Any], str]) -> str:
        """Return the whole message with parameters spelled by `spell(option, value)`."""
        start = f"{spell(self.option, None)}: " if self.option else ""
        ends = "".join(f"; {suggestion.text(spell)}" for suggestion in self.suggestions)
        return f"{start}{self.problem}{ends}"


class ConfigError(VitrineError, ValueError):
    """A setting does not make sense, alone or with another."""


class DataError(VitrineError, ValueError):
    """A data set or an image cannot be read as asked."""


class MissingDataError(DataError, FileNotFoundError):
    """A data set or an image does not exist."""


class ImageSizeError(DataError):
    """An image declares more pixels than are accepted, so it was not decoded."""


class CheckpointError(VitrineError, ValueError):
    """Weights cannot be read, written or fitted to the model."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """A weights file or a run does not exist."""


class MissingExtraError(VitrineError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, *, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed; "
            f"install it with: pip install 'vitrine[{extra}]'"
        )
        self.package, self.extra = package, extra

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.problem, self.__dict__)


class TrainingError(VitrineError, RuntimeError):
    """Training cannot continue: the loss is NaN, for example."""

    exit_code = 3


class RepeatedError(VitrineError):
    """The first of several processes failed and reports it; the others end with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.problem, self.__dict__)


def _rebuilt(kind: type[VitrineError], problem: str, fields: dict[str, Any]) -> VitrineError:
    """Restore an error from another process whose constructor takes other arguments than its message."""
    error = kind.__new__(kind, problem)
    VitrineError.__init__(error, problem)
    error.__dict__.update(fields)
    return error
