"""The results of commands: frozen records with a short repr, and a table in notebooks.

A result contains data, not text; the command line shows it with a view. In Python its repr names every field that
has a value and abbreviates long values: `PredictResult(model='box', num_pictures=3, predictions=<3 Prediction>)`.
"""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

MOST_LETTERS = 80
MOST_ITEMS = 3


class Result:
    """Base of the records that commands return: `@dataclass(frozen=True, kw_only=True, repr=False)`."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={text}" for name, text in shown_fields(self))
        return f"{type(self).__name__}({shown})"

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, shown_fields(self))


def html_table(caption: str, rows: Sequence[tuple[str, str]]) -> str:
    """Write names and values as a table for a notebook."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<table><caption>{html.escape(caption)}</caption>{cells}</table>"


def shown_fields(record: Any) -> list[tuple[str, str]]:
    """Return the fields of a record that have a value, abbreviated."""
    pairs = ((field.name, getattr(record, field.name)) for field in dataclasses.fields(record))
    return [(name, abbreviated(value)) for name, value in pairs if not is_empty(value)]


def is_empty(value: Any) -> bool:
    """Whether a field is empty: None, or an empty list or table."""
    return value is None or (isinstance(value, Sequence | Mapping | AbstractSet) and not value)


def abbreviated(value: Any) -> str:
    """Write a value in a few words: a long list as its length and type of items, an array as its shape."""
    if isinstance(value, str | Path):
        text = str(value)
        return repr(text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 3] + "...")
    if isinstance(value, Mapping):
        items = [f"{abbreviated(key)}: {abbreviated(item)}" for key, item in list(value.items())[:MOST_ITEMS]]
        return in_brackets("{}", items, value, kind="items")
    if isinstance(value, Sequence | AbstractSet):
        items = [abbreviated(item) for item in list(value)[:MOST_ITEMS]]
        return in_brackets("[]" if isinstance(value, list) else "()", items, value, kind=kind_of(value))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{'x'.join(map(str, value.shape))} {value.dtype}>"
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= MOST_LETTERS else f"<{type(value).__name__}>"


def kind_of(values: Any) -> str:
    """Name the type of the first of several values."""
    return next((type(value).__name__ for value in values), "items")


def in_brackets(brackets: str, items: Sequence[str], values: Any, *, kind: str) -> str:
    """Write out a few short items; of more or longer items, only their number."""
    text = ", ".join(items)
    if len(values) > MOST_ITEMS or len(text) > MOST_LETTERS:
        return f"<{len(values):,} {kind}>"
    return f"{brackets[0]}{text}{brackets[1]}"
