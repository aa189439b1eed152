"""Write the reference pages of the documentation site from the code itself, as Markdown.

Verbs are described by their signatures and `Doc` annotations, which also make the command line; other public names by
mkdocstrings, from their docstrings. Needs nothing but Vitrine, so that tests can check it without the site's tools.
"""

import importlib
import inspect
import re
from typing import Any, Literal, get_args, get_origin

import typer.main

import vitrine
from vitrine.cli.app import build
from vitrine.commands import VERBS

API_INTRODUCTION = """# API reference

These names are stable: `import vitrine` offers them, a test lists them, and the
[version policy](../releasing.md#version-policy) says when they may change. They are imported on first use, so
`import vitrine` itself loads no torch.

"""
CLI_INTRODUCTION = """# Command-line reference

Every command is also a [function](api.md) with the same parameters. `vitrine COMMAND --help` prints the same text as
this page, because both are generated from the functions. Options of all commands: `--json` prints the result for
programs, `--help` prints the options.

Exit codes: 0 success, 1 a check failed, 2 wrong usage, 3 training stopped on NaN or infinity, 130 interrupted
(a run is saved first).

"""
BAR, ESCAPED_BAR = "|", "\\|"
# Order and headings of the names that are not commands.
OTHER_NAMES = {
    "Models and weights": ("create_model", "load", "save", "Loaded"),
    "Predicting": ("Predictor", "VitClassifier", "VitRegressor"),
    "Evaluating": ("fewshot_accuracy",),
    "Errors": ("VitrineError",),
}


def api_page() -> str:
    """Return the page of all public names: objects through mkdocstrings, verbs with tables of their parameters."""
    parts = [API_INTRODUCTION]
    verbs = {verb.function for verb in VERBS}
    known = {name for names in OTHER_NAMES.values() for name in names}
    more = sorted(set(vitrine.__all__) - verbs - known - {"__version__"})
    for heading, names in {**OTHER_NAMES, **({"More": tuple(more)} if more else {})}.items():
        parts.append(f"## {heading}\n")
        parts += [f"::: {full_name(name)}\n    options:\n      heading_level: 3\n" for name in names]
    parts.append("## Commands as functions\n")
    for verb in VERBS:
        parts += [f"### vitrine.{verb.function}\n", function_section(getattr(vitrine, verb.function))]
    return "\n".join(parts)


def full_name(name: str) -> str:
    """Return where an object is defined, which is where its docstring stands."""
    thing = getattr(vitrine, name)
    return f"{thing.__module__}.{thing.__qualname__}"


def function_section(function: Any) -> str:
    """Return docstring and parameters of a verb's function."""
    parameters = inspect.signature(function).parameters.values()
    rows = ["| parameter | type | default | meaning |", "|---|---|---|---|"]
    for parameter in parameters:
        kind, text = described(function.__annotations__[parameter.name])
        default = "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        rows.append(f"| `{parameter.name}` | {kind} | {default} | {cell(text)} |")
    names = ", ".join(parameter.name for parameter in parameters)
    return f"```text\nvitrine.{function.__name__}({names})\n```\n\n{summary(function)}\n\n" + "\n".join(
        [*rows, ""]
    )


def summary(function: Any) -> str:
    """Return a docstring without its list of arguments, which the table has."""
    return (inspect.getdoc(function) or "").partition("\nArgs:\n")[0].strip()


def described(annotation: Any) -> tuple[str, str]:
    """Return the type of an annotation in words, and its `Doc`."""
    kind, *metadata = get_args(annotation)
    texts = [item.documentation for item in metadata if hasattr(item, "documentation")]
    return type_words(kind), " ".join(texts)


def type_words(kind: Any) -> str:
    """Return a type as code, without the modules of its parts."""
    if get_origin(kind) is Literal:
        return " or ".join(f"`{value!r}`" for value in get_args(kind))
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return "`" + re.sub(r"(?<![\w.])(?:[a-z_]+\.)+", "", text).replace("|", "\\|") + "`"


def cli_page() -> str:
    """Return the page of all commands, as the real command line describes them."""
    application = typer.main.get_command(build())
    context = application.make_context("vitrine", [], resilient_parsing=True)
    parts = [CLI_INTRODUCTION]
    for verb in VERBS:
        command = application.get_command(context, verb.name)  # type: ignore[attr-defined]
        parts += [f"## vitrine {verb.name}\n", command_section(command, verb.name, context)]
    return "\n".join(parts)


def command_section(command: Any, name: str, parent: Any) -> str:
    """Return usage, description, and a table of arguments and options."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    usage = " ".join(["vitrine", name, *command.collect_usage_pieces(context)])
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [(spelled, text) for spelled, text in filter(None, records) if "--help" not in spelled]
    table = ["| argument or option | meaning |", "|---|---|"]
    table += [f"| `{spelled.replace(BAR, ESCAPED_BAR)}` | {cell(text)} |" for spelled, text in rows]
    text = command.help or importlib.import_module(f"vitrine.commands.{name.replace('-', '_')}").__doc__
    return f"```text\n{usage}\n```\n\n{inspect.cleandoc(text or '')}\n\n" + "\n".join([*table, ""])


def cell(text: str) -> str:
    """Return a text that stays within its cell of a Markdown table."""
    for mark, escaped in (("|", "\\|"), ("<", "&lt;"), ("[", "\\["), ("*", "\\*")):
        text = text.replace(mark, escaped)
    return re.sub(r"\s+", " ", text).strip()
