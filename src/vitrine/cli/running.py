"""Run one verb for the command line: progress on standard error, the result on standard output."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from vitrine.cli.json_output import as_json
from vitrine.cli.lines import show
from vitrine.cli.live import LiveLine
from vitrine.cli.views import result_lines
from vitrine.errors import ConfigError
from vitrine.runtime.launch import launched
from vitrine.runtime.progress import listening


def run_verb(name: str, function: Callable[..., Any], options: Mapping[str, Any], *, is_json: bool) -> int:
    """Call a verb's function, show what it returns and return the exit code; of several processes one prints."""
    if is_json and str(options.get("out")) == "-":
        raise ConfigError("both write to standard output; leave one of them out", option="json")
    if launched().rank > 0:
        return exit_code(function(**options))
    with LiveLine(f"vitrine {name} ...") as line, listening(line):
        result = function(**options)
    if is_json:
        print(as_json(name, result))
    else:
        show(result_lines(name, result), sys.stdout)
    return exit_code(result)


def exit_code(result: Any) -> int:
    """Return the exit code that a result asks for, such as 1 where a check failed."""
    return int(getattr(result, "exit_code", 0))


def complain(text: str) -> None:
    """Print what went wrong on standard error."""
    rank = launched().rank
    show([f"vitrine (process {rank}): {text}" if rank else f"vitrine: {text}"], sys.stderr)
