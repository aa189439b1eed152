"""The exception tree: one class per kind of mistake, and the advice that an error carries.

Each class is also the built-in exception that Python code expects (`ValueError`, `FileNotFoundError`, ...), so that
callers can catch what they know. An error carries data, not command-line words: `option` is the name of the Python
parameter that was wrong, `advice` names parameters or verbs that would help. `str(error)` spells them as Python code;
the command line spells the same fields as options and commands.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


class Spelling(Protocol):
    """How parameters and verbs are written: as Python code or as a command line."""

    def option(self, name: str, value: Any = None) -> str:
        """Write a parameter, with its value unless that is None."""

    def verb(self, name: str, arguments: Sequence[str], options: Mapping[str, Any]) -> str:
        """Write a call of a verb."""


# Verbs whose function has another name, because `models` and `recipes` are also packages.
FUNCTIONS = {"models": "list_models", "recipes": "list_recipes"}


class PythonSpelling:
    """Parameters and verbs as Python code: `overwrite=True`, `vitrine.check('photos')`."""

    def option(self, name: str, value: Any = None) -> str:
        """Write `name`, or `name=value`."""
        return name if value is None else f"{name}={value!r}"

    def verb(self, name: str, arguments: Sequence[str], options: Mapping[str, Any]) -> str:
        """Write a call of the function with the verb's name."""
        words = [*map(repr, arguments), *(f"{option}={value!r}" for option, value in options.items())]
        return f"vitrine.{FUNCTIONS.get(name, name)}({', '.join(words)})"


@dataclass(frozen=True)
class TryOption:
    """Advice to pass a parameter: `TryOption("out", "to write elsewhere")`."""

    option: str
    """Name of the Python parameter."""
    purpose: str
    """From "to ...": "to continue with the data as it is now"."""
    value: Any = None
    """The value to pass; None if any value works, True for a flag."""

    def text(self, spelling: Spelling) -> str:
        """Return "use OPTION to ..."."""
        return f"use {spelling.option(self.option, self.value)} {self.purpose}"


@dataclass(frozen=True)
class TryVerb:
    """Advice to run a verb: `TryVerb("finetune", ("DATA",), "to start one")`."""

    verb: str
    arguments: tuple[str, ...] = ()
    purpose: str = ""
    """From "to ..."; may be empty."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def text(self, spelling: Spelling) -> str:
        """Return "run CALL to ..."."""
        return f"run {spelling.verb(self.verb, self.arguments, self.options)} {self.purpose}".rstrip()


Advice = TryOption | TryVerb
PYTHON = PythonSpelling()


class VitrineError(Exception):
    """One sentence: what is wrong with the given value, and what to do.

    The command line prints it without a traceback and exits with `exit_code`. `suggestions` are the known names or
    existing paths most like a misspelt one, best first, as the sentence shows them.
    """

    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        option: str | None = None,
        advice: Sequence[Advice] = (),
        suggestions: Sequence[str] = (),
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.option = option
        self.advice = tuple(advice)
        self.suggestions = tuple(suggestions)

    def __str__(self) -> str:
        return self.text(PYTHON)

    def text(self, spelling: Spelling) -> str:
        """Return the whole message, parameters and verbs written by `spelling`."""
        start = f"{spelling.option(self.option)}: " if self.option else ""
        return start + "; ".join([self.problem, *(one.text(spelling) for one in self.advice)])


class ConfigError(VitrineError, ValueError):
    """A setting is invalid, alone or together with another."""


class MissingConfigError(ConfigError, FileNotFoundError):
    """A recipe file does not exist."""


class DataError(VitrineError, ValueError):
    """A data set or an image cannot be read as requested."""


class MissingDataError(DataError, FileNotFoundError):
    """A data set or an image does not exist."""


ImageProblem = Literal["empty file", "not an image", "damaged", "too large", "unreadable"]


class ImageError(DataError):
    """An image cannot be decoded; `kind` is the reason in one word or two."""

    def __init__(
        self,
        problem: str,
        *,
        kind: ImageProblem = "unreadable",
        option: str | None = None,
        advice: Sequence[Advice] = (),
    ) -> None:
        super().__init__(problem, option=option, advice=advice)
        self.kind = kind


class ImageSizeError(ImageError):
    """An image declares more pixels than are accepted, so it was not decoded."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, kind="too large")


class CheckpointError(VitrineError, ValueError):
    """Weights cannot be read, written or fitted to the model."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """A weights file or a run does not exist."""


class DownloadError(VitrineError, ConnectionError):
    """A file cannot be downloaded: no network, access denied, a size limit, or a wrong checksum."""


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python or torch means that memory ran out, on the CPU or a device."""
    texts = ("DefaultCPUAllocator", "can't allocate memory", "CUDA out of memory", "std::bad_alloc")
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(text in str(error) for text in texts))
    )


def _rebuilt(kind: type[VitrineError], problem: str, fields: dict[str, Any]) -> VitrineError:
    """Restore an error from another process if its constructor takes more than the message."""
    error = kind.__new__(kind, problem)
    VitrineError.__init__(error, problem)
    error.__dict__.update(fields)
    return error
