"""The lines that views are made of, and how they are printed.

A sentence wraps between words on a terminal. A path that was written and a command to run next are never broken: they
can be copied as they stand. Elsewhere than on a terminal every line stays whole.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable

from vitrine.cli.command_line import GLUE, command, glued
from vitrine.runtime.run_address import shown_place
from vitrine.spelling import printable

HANGING = 2  # columns by which the rest of a broken line is indented
UNBOUNDED = 100_000  # columns of a file or a pipe


@dataclass(frozen=True)
class Wrote:
    """A file or folder that was written: `Wrote runs/1/model   (weights, classes)`."""

    path: str | Path
    note: str = ""


@dataclass(frozen=True)
class Next:
    """A command to run next; several in a row are alternatives, `Next:` before the first and `or:` before the others.

    `Next("inspect", ("runs/1", "./photos"), note="attention and other figures")`
    """

    verb: str
    arguments: Sequence[str | Path] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class NextStep:
    """A next step that is not a command: `NextStep(f"open {glued(page)} in a browser")`."""

    text: str
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows in columns; `right` holds the numbers of the columns that are aligned to the right."""

    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()
    right: Iterable[int] = ()
    indent: int = 0


Line = str | Wrote | Next | NextStep | Table


def show(lines: Iterable[Line], stream: TextIO) -> None:
    """Print lines, those that are wider than a terminal broken between words."""
    for line in rendered(lines, width=width_of(stream)):
        print(line, file=stream, flush=True)


def width_of(stream: TextIO) -> int:
    """Return the columns of the terminal that `stream` writes to; elsewhere lines have no limit."""
    return shutil.get_terminal_size().columns if stream.isatty() else UNBOUNDED


def rendered(lines: Iterable[Line], *, width: int) -> Iterator[str]:
    """Turn lines into text of at most `width` columns, where words, paths and commands allow it."""
    before: Line | None = None
    for line in lines:
        if isinstance(line, Table):
            yield from rendered_table(line, width=width)
        elif isinstance(line, Wrote):
            yield from with_note(glued(f"Wrote {shown_place(line.path)}"), line.note, width=width)
        elif isinstance(line, Next | NextStep):
            lead = "  or: " if isinstance(before, Next | NextStep) else "Next: "
            text = line.text if isinstance(line, NextStep) else command_of(line)
            yield from with_note(lead + text, line.note, width=width)
        else:
            yield from wrapped(line, width=width)  # a line break in a name is escaped, not printed
        before = line


def command_of(line: Next) -> str:
    """Spell the command of a line."""
    return command(line.verb, *map(shown_place, line.arguments), **line.options)


def with_note(text: str, note: str, *, width: int) -> Iterator[str]:
    """Write a note in brackets behind text, or on its own line where both do not fit on one."""
    if not note:
        yield from wrapped(text, width=width)
    elif cell_len(text) + cell_len(note) + len("   ()") <= width:
        yield from wrapped(f"{text}   ({note})", width=width)
    else:
        yield from wrapped(text, width=width)
        yield from wrapped(f"{' ' * HANGING}({note})", width=width)


def wrapped(line: str, *, width: int) -> Iterator[str]:
    """Break one line between words; a word that is wider than all of it, such as a path, stays whole."""
    line = GLUE.join(printable(part) for part in line.split(GLUE))
    if cell_len(line.replace(GLUE, " ")) <= width:
        yield line.replace(GLUE, " ")
        return
    start = " " * (len(line) - len(line.lstrip(" ")))
    current = ""
    for word in filter(None, line.split(" ")):
        longer = f"{current} {word}" if current else f"{start}{word}"
        if current and cell_len(longer.replace(GLUE, " ")) > width:
            yield current.replace(GLUE, " ")
            current = f"{start}{' ' * HANGING}{word}"
        else:
            current = longer
    yield current.replace(GLUE, " ")


def rendered_table(table: Table, *, width: int) -> Iterator[str]:
    """Lay out a table with two spaces between columns; cells wrap only where the terminal is too narrow."""
    right = set(table.right)
    grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(table.header))
    for number in range(max(len(row) for row in (table.header, *table.rows))):
        name = table.header[number] if table.header else ""
        grid.add_column(
            name, justify="right" if number in right else "left", overflow="fold", header_style=""
        )
    for row in table.rows:
        grid.add_row(*(printable(cell) for cell in row))
    console = Console(
        width=width - table.indent, highlight=False, markup=False, emoji=False, color_system=None
    )
    with console.capture() as captured:
        console.print(grid)
    for line in captured.get().rstrip("\n").split("\n"):
        yield (" " * table.indent + line).rstrip()


def input_text(
    image_size: tuple[int, int], max_patches: int | None, *, packed_attention: str | None = None
) -> str:
    """Write how pictures enter a model: their size, or their own aspect ratio, and how attention is computed then."""
    if max_patches is not None:
        attention = f", {packed_attention}" if packed_attention else ""
        return f"own aspect ratio, at most {max_patches:,} patches{attention}"
    return f"{'x'.join(map(str, image_size))} px"
