"""Checks that every config runs when created: types, and sizes that can be built. A config may come from a file."""

import functools
import math
from collections.abc import Hashable
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vitrine.errors import ConfigError
from vitrine.spelling import nearest

# Far above every existing model: larger values are a mistake or an attack and would take hours to build.
LARGEST_WIDTH, LARGEST_DEPTH, LARGEST_SIDE, MOST_CLASSES = 2**17, 1000, 2**16, 10**8
MOST_STAGES = 8  # of a stem; each doubles its width


def require_types(config: Any) -> None:
    """Refuse values that do not have their field's type: a config may come from a file."""
    for name, kind in _field_types(config).items():
        value = getattr(config, name)
        if not _fits(value, kind):
            raise ConfigError(f"{name} must be {_shown_kind(kind)}, got {value!r:.40}")


def _field_types(config: Any) -> dict[str, Any]:
    # Cached: resolving the types takes longer than all checks, and a search through all variants creates 60 configs.
    kind: Hashable = config.__class__
    return _hints(kind)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return isinstance(value, str)  # the choice itself is checked elsewhere, with a suggestion
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_fits(part, get_args(kind)[0]) for part in value)
    if kind is int:
        return not isinstance(value, bool) and isinstance(value, Integral)
    if kind is float:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    return isinstance(value, kind)


def _shown_kind(kind: Any) -> str:
    words = {int: "a whole number", float: "a finite number", bool: "true or false", type(None): "None"}
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return " or ".join(words.get(one, str(getattr(one, "__name__", one))) for one in kinds)


def require_choices(config: Any) -> None:
    """Refuse a word that is not one of its field's choices, with the nearest one."""
    for name, kind in _field_types(config).items():
        value, choices = getattr(config, name), get_args(kind)
        if get_origin(kind) is Literal and value not in choices:
            close = nearest(value, choices)[0]
            raise ConfigError(
                f"{name} must be one of {', '.join(choices)}, got {value!r}; nearest: {close}",
                suggestions=[close],
            )


def require_positive(name: str, value: int, *, most: int = LARGEST_WIDTH) -> None:
    """Refuse a count that is not from 1 to `most`."""
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}")
    if value > most:
        raise ConfigError(f"{name} must be at most {most:,}, got {value:.3g}")


def require_heads(width: int, num_heads: int) -> None:
    """Refuse heads that do not divide the width, naming the nearest numbers that do."""
    if width % num_heads == 0:
        return
    fits = [heads for heads in range(1, width + 1) if width % heads == 0]
    below = max(heads for heads in fits if heads < num_heads)
    above = min((heads for heads in fits if heads > num_heads), default=width)
    raise ConfigError(
        f"width must be a multiple of num_heads, got {width} and {num_heads}; "
        f"nearest num_heads that fit: {below} and {above}"
    )


def require_sizes(name: str, size: tuple[int, int]) -> None:
    """Refuse a value that is not a height and a width in pixels."""
    if len(size) != 2:
        raise ConfigError(f"{name} must be a height and a width, got {size!r:.40}")
    for side in size:
        require_positive(name, side, most=LARGEST_SIDE)


def require_classes(num_classes: int) -> None:
    """Refuse a head without classes."""
    if num_classes < 1:
        raise ConfigError(
            f"num_classes must be at least 1, got {num_classes}; None builds no head: the model returns features"
        )
    require_positive("num_classes", num_classes, most=MOST_CLASSES)
