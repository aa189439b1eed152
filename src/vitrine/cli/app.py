"""The command line, derived from the functions in `vitrine.commands`.

Every keyword of a verb's function becomes an option with the same name, its `Doc` the help text. The
verb's view (`vitrine.cli.views`) shows the result, and `--json` prints it for machines.

Exit codes: 0 done, 1 a check failed, 2 the user's mistake, 3 training stopped, 130 interrupted.
"""

import errno
import importlib
import inspect
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType, ModuleType, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from vitrine.cli.command_line import COMMAND_LINE, option
from vitrine.commands import OTHER_NAMES, VERBS, Verb, kind_and_text
from vitrine.errors import RepeatedError, TrainingError, VitrineError, is_out_of_memory
from vitrine.runtime.launch import launched
from vitrine.version import __version__

INTERRUPTED = 130
# Rounds that an idle OpenMP thread spins before it sleeps. If other programs keep the cores busy, libgomp's default
# of 300,000 rounds (5 ms) at every step of a model makes one photo take 30 times as long as 1,000 rounds, libgomp's
# own choice for oversubscribed machines.
SPIN_ROUNDS = "1000"


ELSEWHERE = f"write elsewhere with {option('out')}"
# An error of the disk is not a bug: one sentence says what happened and what to do.
REFUSALS = {
    errno.ENOSPC: f"free some space, or {ELSEWHERE}",
    errno.EDQUOT: f"free some space, or {ELSEWHERE}",
    errno.EFBIG: f"files of this size may not be written here (ulimit -f); {ELSEWHERE}",
    errno.EROFS: ELSEWHERE,
    errno.EACCES: f"ask its owner for permission, or use another path ({option('out')})",
    errno.EPERM: f"ask its owner for permission, or use another path ({option('out')})",
}


def main() -> None:
    """Run the command line on the arguments of this process."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_ROUNDS)  # read when torch is imported, which it is not yet
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As on standard error: a character that the terminal cannot encode is escaped and does not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    # torch.compile recommends TF32, and its warning would break the live line; fp32 is exact here on purpose.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    code = exit_code_of(run_command, interruptions=noted_interruptions())
    if launched().world_size > 1:
        # Threads of torch's process groups may still want the GIL while the interpreter shuts down, and abort.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run_command(**options: Any) -> None:
    """Put the commands together and run the one that the arguments of this process name."""
    build()(**options)


def noted_interruptions() -> list[int]:
    """Note every Ctrl-C, also one that is swallowed.

    Libraries in C do so while they import each other (torch numpy), and are broken afterwards.
    """
    noted: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background of a shell
        signal.signal(signal.SIGINT, interrupt)
    return noted


def exit_code_of(app: Callable[..., Any], *, interruptions: Sequence[int] = ()) -> int:
    """Run a command; report in one sentence what went wrong, if anything did."""
    try:
        app(prog_name="vitrine")
    except SystemExit as end:
        if end.code == INTERRUPTED:  # Typer's word for Ctrl-C
            print("vitrine: interrupted", file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except VitrineError as error:
        if not isinstance(error, RepeatedError):
            complain(error.text(COMMAND_LINE))
        return error.exit_code
    except (KeyboardInterrupt, Exception) as error:
        if interruptions or isinstance(error, KeyboardInterrupt):
            print("vitrine: interrupted", file=sys.stderr)
            return INTERRUPTED
        if isinstance(error, MemoryError | RuntimeError | OSError):
            return refused_by_the_system(error)
        raise
    return 0


def refused_by_the_system(error: Exception) -> int:
    """Report running out of memory or an error of the disk in one sentence; raise anything else again, as a bug."""
    if is_out_of_memory(error):
        complain("out of memory; use a smaller model, image size or batch, or fewer workers")
        return TrainingError.exit_code
    if not isinstance(error, OSError) or error.errno not in REFUSALS:
        raise error
    where = f" ({error.filename})" if error.filename else ""
    complain(f"{error.strerror}{where}; {REFUSALS[error.errno]}")
    return VitrineError.exit_code


def complain(text: str) -> None:
    """Print what went wrong on standard error."""
    running().complain(text)


def running() -> ModuleType:
    """Import what prints with rich, which --help does without."""
    from vitrine.cli import running as module  # noqa: PLC0415

    return module


def build() -> typer.Typer:
    """Build the Typer application with every verb; imports no torch."""
    app = typer.Typer(
        name="vitrine",
        help="The Vision Transformer as complete, practical software.",
        epilog="Begin with: vitrine check ./photos, then: vitrine finetune ./photos",
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help answers in half the time
        pretty_exceptions_enable=False,  # a bug shows Python's own traceback; a user's mistake, one sentence
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def root(
        version: Annotated[bool, typer.Option("--version", help="Print the version and exit")] = False,
    ) -> None:
        if version:
            print(f"vitrine {__version__}")
            raise typer.Exit

    for verb in VERBS:
        run = as_command(verb)
        app.command(verb.name, cls=VerbCommand, short_help=gist(run.__doc__ or ""))(run)
        for name in (other for other, meant in OTHER_NAMES.items() if meant == verb.name):
            app.command(name, cls=VerbCommand, hidden=True)(run)
    return app


class VerbCommand(TyperCommand):
    """A command whose usage line reads `vitrine finetune [OPTIONS] DATA`, without braces round DATA."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


def gist(sentence: str) -> str:
    """Return the first clause of a docstring, for the list of all verbs."""
    return re.split(r"[:;.]( |$)", sentence.splitlines()[0])[0]


def as_command(verb: Verb) -> Callable[..., None]:
    """Wrap a verb's function so that it reads options, shows its result and returns its exit code."""
    function: Callable[..., Any] = getattr(importlib.import_module(verb.module), verb.function)
    annotated = function.__annotations__
    parameters = [
        option_of(p.replace(annotation=annotated[p.name]))
        for p in inspect.signature(function).parameters.values()
    ]
    parameters.append(
        inspect.Parameter(
            "json",
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[bool, typer.Option("--json", help="Print the result as JSON")],
            default=False,
        )
    )

    def run(**options: Any) -> None:
        is_json = options.pop("json")
        if code := running().run_verb(verb.name, function, options, is_json=is_json):
            raise typer.Exit(code)

    run.__name__ = verb.name
    run.__doc__ = (function.__doc__ or "").split("\n\nArgs:")[0]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def option_of(parameter: inspect.Parameter) -> inspect.Parameter:
    """Turn one parameter of a library function into an argument (positional) or an option (keyword)."""
    annotation, text = kind_and_text(parameter.annotation)
    kind = typed_kind(annotation)
    places: dict[str, Any] = {}
    if kind in (Path, Path | None):
        kind, places = (TYPED if kind is Path else TYPED | None), {"parser": typed_place}
    if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        mark: Any = typer.Argument(
            help=text,
            metavar=parameter.name.upper(),
            show_default=parameter.default not in (None, ()),
            **places,
        )
    elif kind is bool and parameter.default:
        mark = typer.Option(help=text)  # a switch that is on needs its --no- form
    else:
        # `class_` is --class: a word that Python keeps for itself ends in an underscore.
        flag = "--" + parameter.name.rstrip("_").replace("_", "-")
        mark = typer.Option(flag, help=text, metavar="<str>" if kind == list[str] | None else None, **places)
    return parameter.replace(annotation=Annotated[kind, mark])


# The type of values that `typed_place` reads; help texts show its name.
TYPED: Any = type("path", (), {})


def typed_place(place: str | Path) -> Path | str:
    """Return a path, or an address such as s3://bucket/x, which pathlib would shorten, as text; also for defaults."""
    return place if "://" in str(place) else Path(place)


def typed_kind(annotation: Any) -> Any:
    """Return the type of a command-line value, given all types that Python callers may pass.

    `str | Path` is text (a path or another name), `Path | str` a path; a single value is a list of one.
    """
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    members = get_args(annotation)
    kept = [member for member in members if member is not NoneType]
    lists = [member for member in kept if get_origin(member) in (list, Iterable, Sequence)]
    if str in kept and any(
        get_args(member)[0] in (int, float) for member in lists
    ):  # numbers with commas between
        kind: Any = str
    elif lists:
        kind = list[str]
    else:
        kind = next((member for member in kept if member in (str, Path)), None) or annotation
    return kind | None if NoneType in members and kind is not annotation else kind
