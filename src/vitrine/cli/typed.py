"""Commands in what is said, as the user has to type them: `vitrine` may not be on the path of a fresh clone."""

import re
import shutil
import sys
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


def as_option(option: str, value: Any = None) -> str:
    """Spell a parameter of the library as an option of the command line: `--out`, `--batch-size 8`."""
    name = "--" + option.rstrip("_").replace("_", "-")
    return name if value is None or value is True else f"{name} {value}"
