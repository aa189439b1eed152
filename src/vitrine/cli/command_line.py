"""Parameters and verbs spelled as a command line, in the way in which the user called `vitrine`.

An option with its value and a whole command are joined by `GLUE` instead of spaces, so that no line is ever broken
inside them; `vitrine.cli.lines` turns it into spaces when it prints.
"""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GLUE = "\x1f"  # ASCII's unit separator, which no terminal shows and no view writes


def program() -> str:
    """Return how to call vitrine: by its name, or by the path that was used if the name alone would not be found."""
    called = sys.argv[0]
    if Path(called).name == "vitrine" and "/" in called and shutil.which("vitrine") is None:
        return called
    return "vitrine"


def option(name: str, value: Any = None) -> str:
    """Write `--name` or `--name value`; `class_` is `--class`, as Python keeps some words for itself."""
    flag = "--" + name.rstrip("_").replace("_", "-")
    return flag if value is None or value is True else glued(f"{flag} {shlex.quote(str(value))}")


def command(verb: str, *arguments: object, **options: Any) -> str:
    """Write a call of a verb; an argument is quoted where a shell would read it otherwise."""
    words = [program(), verb, *(shlex.quote(str(one)) for one in arguments)]
    words += [option(name, value) for name, value in options.items()]
    return glued(" ".join(words))


def glued(text: object) -> str:
    """Return text, such as a path with spaces, in which no line is ever broken."""
    return str(text).replace(" ", GLUE)


class CommandLineSpelling:
    """How errors and notices write parameters and verbs on the command line (see `vitrine.errors.Spelling`)."""

    def option(self, name: str, value: Any = None) -> str:
        """Write an option."""
        return option(name, value)

    def verb(self, name: str, arguments: Sequence[str], options: Mapping[str, Any]) -> str:
        """Write a command."""
        return command(name, *arguments, **options)


COMMAND_LINE = CommandLineSpelling()
