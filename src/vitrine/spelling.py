"""The nearest known name to one that was misspelt."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return the `count` known names most alike to `name`, case and punctuation aside, best first."""

    def bare(text: str) -> str:
        return "".join(letter for letter in str(text).lower() if letter.isalnum())

    def alike(candidate: str) -> float:
        return difflib.SequenceMatcher(None, bare(name), bare(candidate)).ratio()

    return sorted(known, key=alike, reverse=True)[:count]
