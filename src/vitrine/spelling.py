"""Words in messages: names that are safe on a terminal, the nearest known names, numbers with nouns, durations."""

import difflib
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

# Escape sequences, line breaks and marks that reverse the direction of text: a name that contains them could
# move the cursor, forge a line or display a different name.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(name: str) -> str:
    """Return `name` with bytes that are not UTF-8 and control characters escaped, for terminals and files."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def nearest(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return the `count` known names most similar to `name`, ignoring case and punctuation, best first."""

    def bare(text: str) -> str:
        return "".join(letter for letter in str(text).lower() if letter.isalnum())

    def alike(candidate: str) -> float:
        return difflib.SequenceMatcher(None, bare(name), bare(candidate)).ratio()

    return sorted(known, key=alike, reverse=True)[:count]


def near_match(name: str, known: Collection[str]) -> str | None:
    """Return the known name with almost the spelling of `name`, ignoring case; None if there is none."""
    lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    return lower[matches[0]] if matches else None


def width_of(text: str) -> int:
    """Count the columns of a text: wide letters, as in Chinese and emoji, take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text
    )


def cut_to(text: str, most: int) -> str:
    """Return the beginning of a text, at most `most` columns wide."""
    while width_of(text) > most:
        text = text[:-1]
    return text


def counted(number: int, noun: str) -> str:
    """Return `1 file`, `2 files`, `1,000 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """Return `42 s`, `7.4 min`, `83 min`, `2.5 h`, `12 days`, `57 years`."""
    for unit, length in (("years", 365.25 * 86_400), ("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            number = seconds / length
            return f"{number:.2g} {unit}" if number < 10 else f"{number:,.0f} {unit}"
    return f"{max(math.ceil(seconds), 1)} s"


def with_name(reason: str, name: str) -> str:
    """Put a file's name before the reason why it cannot be read, unless the reason names it already."""
    return reason if name in reason else f"{name}: {reason}"


def with_first(unreadable: Mapping[str, str], noun: str, *, count: int | None = None) -> str:
    """Count the unreadable items (`count` if only a few are listed), with the reason for the first."""
    name, why = next(iter(unreadable.items()))
    return f"{counted(len(unreadable) if count is None else count, noun)}; the first: {with_name(why, name)}"


def some_of(names: Sequence[str], *, most: int = 5) -> str:
    """Name the first few of many for a message, and how many more there are."""
    shown = ", ".join(printable(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
