"""Lines that are longer than the terminal is wide, broken between words; elsewhere every line stays whole.

Commands and paths can be copied as they are: a line that ends in one is left to the terminal.
"""

import re
import shutil
from typing import TextIO

from vitrine.commands import VERBS
from vitrine.spelling import num_cells

# What follows may be copied: only the notice behind it, which stands in brackets after three spaces, moves down.
COPIED = re.compile(r"\s*(Next:|or:|Wrote) ")
REMARK = re.compile(r"(?<=\S) +(?=\([^()]*\)$)")
# What is never broken inside a sentence: a command to its end, a setting with its option.
WORD = re.compile(rf"( *)((?<=: )\S*vitrine (?:{'|'.join(verb.name for verb in VERBS)})\b.*|--set \S+|\S+)")
HANGING = 2  # columns by which what was moved down stands further in


def fitted(text: str, stream: TextIO) -> str:
    """Break the lines of `text` to the width of the terminal that `stream` writes to, if it is one."""
    if not stream.isatty():
        return text
    return "\n".join(broken(text, width=shutil.get_terminal_size().columns))


def broken(text: str, *, width: int) -> list[str]:
    """Break each line of `text` that is wider than `width` cells between words."""
    lines: list[str] = []
    for line in text.split("\n"):
        if num_cells(line) <= width:
            lines.append(line)
        elif COPIED.match(line):
            copied, *notice = REMARK.split(line)
            indent = " " * (len(line) - len(line.lstrip()) + HANGING)
            lines += [copied] if "Wrote" in copied else filled(copied, width=width)
            lines += [indent + part for part in notice]
        else:
            lines += filled(line, width=width)
    return lines


def filled(line: str, *, width: int) -> list[str]:
    """Break one line between words; a word that is wider than all of it, such as a path, stays whole."""
    start = len(line) - len(line.lstrip())
    lines, indent = [line[:start]], " " * (start + HANGING)
    for gap, word in WORD.findall(line[start:]):
        longer = lines[-1] + gap + word
        if num_cells(longer) <= width or not lines[-1].strip():
            lines[-1] = longer
        else:
            lines.append(indent + word)
    return lines
