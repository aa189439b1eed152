"""A verb's result for machines: the fields of its record as JSON, with the version of this format."""

import dataclasses
import json
from pathlib import Path
from typing import Any

# Rises when a field of any result is renamed, removed or changes its meaning; new fields do not change it.
VERSION = 1


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
        return str(result)
    return result
