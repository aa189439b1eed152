"""Commands in what is said, as the user has to type them: `vitrine` may not be on the path of a fresh clone."""

import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrine.commands import VERBS

# At the beginning of a line or after a colon, before a verb: "Next: vitrine finetune ./photos".
COMMAND = re.compile(
    rf"(?m)(^\s+|: )vitrine (?=(?:{'|'.join(verb.name for verb in VERBS)}|--help)\b)",
)


def as_typed(text: str) -> str:
    """Replace `vitrine` in commands by the way it was called, where it cannot be called by its name alone."""
    called = sys.argv[0]
    is_elsewhere = Path(called).name == "vitrine" and "/" in called and shutil.which("vitrine") is None
    return COMMAND.sub(lambda found: f"{found[1]}{called} ", text) if is_elsewhere else text


class CommandLineSpelling:
    """Parameters and verbs as the user types them: `--out`, `vitrine check photos`."""

    def option(self, name: str, value: Any = None) -> str:
        """Write `--name`, or `--name value`."""
        flag = "--" + name.rstrip("_").replace("_", "-")
        return flag if value is None or value is True else f"{flag} {shlex.quote(str(value))}"

    def verb(self, name: str, arguments: Sequence[str], options: Mapping[str, Any]) -> str:
        """Write a command."""
        given = [*map(shlex.quote, arguments), *(self.option(key, value) for key, value in options.items())]
        return " ".join(["vitrine", name, *given])


COMMAND_LINE = CommandLineSpelling()
