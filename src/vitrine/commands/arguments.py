"""The values that Python callers pass to verbs, in one form: `str` and `Path`, one value and a list of them.

Verbs accept all natural forms (`out="x.csv"`, `out=Path("x.csv")`, `pictures="a.jpg"`, `shots=[1, 5]`); the
functions here convert them to the one form that the jobs take. This module imports no room, so it loads fast.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, overload

from vitrine.errors import ConfigError

BOX = "box"
# Also an address that pathlib has shortened: s3:/bucket/x.
_ADDRESS, _LOCAL = re.compile(r"[a-z][a-z0-9+]+:/"), "file://"


@overload
def as_path(path: str | Path) -> Path: ...
@overload
def as_path(path: str | Path | None) -> Path | None: ...
def as_path(path: str | Path | None) -> Path | None:
    """Return a path, or None for None; refuse an address, which is not a path on this machine."""
    if path is not None and _ADDRESS.match(str(path)):
        raise ConfigError(
            f"{path} is an address, not a path on this machine (only runs, embed and predict write to addresses)"
        )
    return None if path is None else Path(path)


@overload
def as_place(place: str | Path) -> Path | str: ...
@overload
def as_place(place: str | Path | None) -> Path | str | None: ...
def as_place(place: str | Path | None) -> Path | str | None:
    """Return a path, or an address such as s3://bucket/x as text; None for None."""
    if place is None or not _ADDRESS.match(str(place)):
        return None if place is None else Path(place)
    if isinstance(place, Path):
        raise ConfigError(f"{place} is an address that pathlib has shortened; pass it as text", option="out")
    return Path(place.removeprefix(_LOCAL)) if place.startswith(_LOCAL) else place


def as_image_size(size: int | None, *, patch: int | None = None, max_patches: int | None = None) -> Any:
    """Return the input shape of a model: an image size, with a patch size or a number of patches if given."""
    if patch is None and max_patches is None:
        return size
    return {"size": size, "patch": patch, "max_patches": max_patches}


def as_paths(paths: str | Path | Iterable[str | Path] | None) -> tuple[Path, ...]:
    """Return all paths of a list; a single one needs no list."""
    return tuple(map(Path, as_list(paths)))


def as_texts(words: str | Path | Iterable[str | Path] | None) -> tuple[str, ...]:
    """Return all words of a list as text; a single one needs no list."""
    return tuple(map(str, as_list(words)))


def as_pictures(pictures: str | Path | Iterable[Any] | None) -> Iterable[Any]:
    """Return pictures with paths as text; a single path needs no list, an array or a generator stays as it is."""
    if pictures is None or isinstance(pictures, str | Path | list | tuple):
        values = () if pictures is None else (pictures,) if isinstance(pictures, str | Path) else pictures
        return tuple(str(one) if isinstance(one, Path) else one for one in values)
    return pictures


def as_list(values: str | Path | Iterable[str | Path] | None) -> tuple[str | Path, ...]:
    """Return what was passed as a list, as a single value or not at all."""
    if values is None:
        return ()
    return (values,) if isinstance(values, str | Path) else tuple(values)


@overload
def as_numbers(numbers: str | float | Iterable[float]) -> str: ...
@overload
def as_numbers(numbers: str | float | Iterable[float] | None) -> str | None: ...
def as_numbers(numbers: str | float | Iterable[float] | None) -> str | None:
    """Write a list of numbers as the command line takes it, `1,5,10`; None for None."""
    if numbers is None or isinstance(numbers, str):
        return numbers
    return str(numbers) if isinstance(numbers, int | float) else ",".join(map(str, numbers))


@overload
def as_model(model: str | Path) -> str: ...
@overload
def as_model(model: str | Path | None) -> str | None: ...
def as_model(model: str | Path | None) -> str | None:
    """Return the text that names a model; a `Path` always names a file or folder, never "box" or a hub id."""
    if model is None:
        return None
    if isinstance(model, str) or model.is_absolute() or (model.exists() and str(model) != BOX):
        return str(model)
    return f"./{model}"


def require_at_least(least: float, **values: float | None) -> None:
    """Refuse a parameter that is below `least`; None stands for a default."""
    for name, value in values.items():
        if value is not None and not value >= least:
            raise ConfigError(f"must be at least {least:g}, got {value:g}", option=name)


def require_above_zero(**values: float | None) -> None:
    """Refuse a parameter that is 0 or less, or NaN; None stands for a default."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ConfigError(f"must be above 0, got {value:g}", option=name)
