"""Variations of one test: a few run in `make test`, all of them in `make slow` and `make coverage`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def costly(names: Iterable[Any], *, quick: Collection[Any]) -> list[Any]:
    """Mark all values of a parameter but the quick ones as slow."""
    return [
        name
        if name in quick
        else pytest.param(*(name if isinstance(name, tuple) else (name,)), marks=pytest.mark.slow)
        for name in names
    ]
