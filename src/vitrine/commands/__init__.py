"""One function per verb: its signature, cheap checks, and one call of its work in `vitrine.jobs`.

`vitrine finetune` and `vitrine.finetune()` are the same function: the command line is derived from its
signature. A verb's module imports in milliseconds: its work is imported inside the function, when it is called.
"""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Signature, cleandoc, signature  # `inspect` itself is a verb here
from typing import Annotated, Any, TypeVar, get_args, get_origin

from annotated_doc import Doc

Function = TypeVar("Function", bound=Callable[..., Any])
DOCSTRING_WIDTH = 100


@dataclass(frozen=True)
class Verb:
    """The module of a verb's function and its name for library users."""

    name: str
    function: str

    @property
    def module(self) -> str:
        """The module that holds the function, by its full name."""
        return f"vitrine.commands.{self.name.replace('-', '_')}"


# In the order in which a newcomer needs them.
VERBS = (
    Verb("demo", "demo"),
    Verb("check", "check"),
    Verb("finetune", "finetune"),
    Verb("pretrain", "pretrain"),
    Verb("resume", "resume"),
    Verb("report", "report"),
    Verb("evaluate", "evaluate"),
    Verb("predict", "predict"),
    Verb("suggest", "suggest"),
    Verb("embed", "embed"),
    Verb("merge", "merge"),
    Verb("index", "index"),
    Verb("search", "search"),
    Verb("fewshot", "fewshot"),
    Verb("vtab", "vtab"),
    Verb("inspect", "inspect"),
    Verb("export", "export"),
    Verb("serve", "serve"),
    Verb("bench", "bench"),
    Verb("study", "study"),
    Verb("models", "list_models"),  # `vitrine.models` is the room
    Verb("recipes", "list_recipes"),  # so is `vitrine.recipes`
    Verb("plan", "plan"),
    Verb("convert", "convert"),
    Verb("dedup", "dedup"),
    Verb("shard", "shard"),
)

# Other names that people type for a verb; not listed in the help.
OTHER_NAMES = {"train": "finetune"}


def documented(function: Function) -> Function:
    """Add the list of arguments to a verb's docstring, and show its signature without the texts of `Annotated`.

    The text of an argument is its `Doc`, which is also the help text of its option.
    """
    lines = [cleandoc(function.__doc__ or ""), "", "Args:"]
    parameters = []
    for parameter in signature(function).parameters.values():
        kind, text = kind_and_text(parameter.annotation)
        text = f"{parameter.name}: {text}"
        lines += textwrap.wrap(text, DOCSTRING_WIDTH, initial_indent="    ", subsequent_indent="        ")
        parameters.append(parameter.replace(annotation=kind))
    function.__doc__ = "\n".join(lines)
    returned = function.__annotations__.get("return", Signature.empty)
    function.__signature__ = Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    return function


def kind_and_text(annotation: Any) -> tuple[Any, str]:
    """Split `Annotated[kind, Doc(text)]` into its type and its text."""
    if get_origin(annotation) is not Annotated:
        return annotation, ""
    kind, *notes = get_args(annotation)
    return kind, next((note.documentation for note in notes if isinstance(note, Doc)), "")
