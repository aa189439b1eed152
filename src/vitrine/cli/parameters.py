"""From a parameter of a verb's function to an argument or an option of the command line."""

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from vitrine.commands import kind_and_text


def option_of(parameter: inspect.Parameter) -> inspect.Parameter:
    """Turn one parameter of a library function into an argument (positional) or an option (keyword)."""
    annotation, text = kind_and_text(parameter.annotation)
    kind = typed_kind(annotation)
    if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        mark: Any = typer.Argument(
            help=text, metavar=parameter.name.upper(), show_default=parameter.default not in (None, ())
        )
    elif kind is bool and parameter.default:
        mark = typer.Option(help=text)  # a switch that is on needs its --no- form
    else:
        # `class_` is --class: a word that Python keeps for itself ends in an underscore.
        flag = "--" + parameter.name.rstrip("_").replace("_", "-")
        mark = typer.Option(flag, help=text, metavar="<str>" if kind == list[str] | None else None)
    return parameter.replace(annotation=Annotated[kind, mark])


def typed_kind(annotation: Any) -> Any:
    """Return what of the types that Python callers may pass is typed on a command line.

    `str | Path` is text (a path or another name), `Path | str` a path; beside a list, a single value is one of it.
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
