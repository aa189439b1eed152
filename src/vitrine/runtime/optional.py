"""Packages that only some users need: imported when they are used, with a one-sentence error if they are missing."""

import importlib
from typing import Any

from vitrine.errors import MissingExtraError


def optional(module: str, *, extra: str, purpose: str) -> Any:
    """Import a module of a package that the extra `extra` installs; `purpose` says what needs it."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(package, extra=extra, purpose=purpose) from error
