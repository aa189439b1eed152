"""Run one verb for the command line: progress on standard error, the result on standard output.

`--json` prints the fields of the result with the version of this format.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitrine.cli.lines import show
from vitrine.cli.live import LiveLine
from vitrine.cli.views import result_lines
from vitrine.errors import ConfigError
from vitrine.runtime.launch import launched
from vitrine.runtime.progress import listening
from vitrine.runtime.run_address import shown_place

# Rises when a field of any result is renamed, removed or changes its meaning; new fields do not change it.
VERSION = 1


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


def as_json(verb: str, result: Any) -> str:
    """Write a result as one JSON object; the rows of a list stand under the verb's name."""
    fields = plain(result)
    if not isinstance(fields, dict):
        fields = {} if fields is None else {verb: fields}
    return json.dumps({"version": VERSION, **fields}, indent=2)


def plain(result: Any) -> Any:
    """Turn records, paths and containers into what JSON can hold."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: plain(getattr(result, field.name)) for field in dataclasses.fields(result)}
    if isinstance(result, dict):
        return {str(key): plain(value) for key, value in result.items()}
    if isinstance(result, (list, tuple)):
        return [plain(item) for item in result]
    if isinstance(result, Path):
        return shown_place(result)
    return result
