"""Convert frozen records to the plain values of files and options and back; refuse unknown names and wrong types.

In recipes and settings of version 0.1 every objective had a top-level section of its own: `objective: dino` with
`self_distillation: {...}` and `multi_crop: {...}` beside it is now a table with `kind: dino`. Files of version 0.1
are read and resumed; settings by their earlier names keep working.
"""

import dataclasses
import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from vitrine.errors import ConfigError
from vitrine.objectives import OBJECTIVES, LabelsObjective, find_objective
from vitrine.spelling import near_match, nearest

# YAML 1.1 reads 3e-4 as a word, since it has no decimal point.
POWER_OF_TEN = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+")


def read_value(text: str) -> Any:
    """Read a value as YAML does, and numbers such as 3e-4, which YAML 1.1 reads as words."""
    try:
        return float(text) if POWER_OF_TEN.fullmatch(text) else yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"a value is a number, a word or a list such as [0.1, 0.2], got {text!r}") from None


def unknown_setting(path: str, values: Mapping[str, Any]) -> ConfigError:
    """Return the error for a setting that does not exist, with the nearest one in the table."""
    known: list[str] = []

    def collect(values: Mapping[str, Any], prefix: str) -> None:
        for name, value in values.items():
            known.append(prefix + name)
            if isinstance(value, dict):
                collect(value, f"{prefix}{name}.")

    collect(values, "")
    # `lr` suggests `training.lr`: the name of a setting matters more than its section.
    own_names = {name: name.rpartition(".")[2] for name in known}
    own_name = near_match(path.rpartition(".")[2], set(own_names.values()))
    alike = [name for name in known if own_names[name] == own_name]
    close = nearest(path, alike or known)
    message = f"there is no setting {path!r}; did you mean {close[0]!r}?"
    return ConfigError(message, option="set", suggestions=close)


def build(kind: Any, values: Mapping[str, Any], *, where: str, **ready: Any) -> Any:
    """Build a frozen record from plain values, nested records included; fields in `ready` are not converted."""
    names = {one.name for one in dataclasses.fields(kind)}
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name in names}
    arguments: dict[str, Any] = dict(ready)
    for name, value in values.items():
        if name not in hints:
            close = nearest(name, hints)
            raise ConfigError(
                f"there is no setting {where + name!r}; did you mean {close[0]!r}?", suggestions=close
            )
        arguments[name] = convert(hints[name], value, where=where + name)
    return kind(**arguments)


def convert(kind: Any, value: Any, *, where: str) -> Any:
    """Convert a plain value to the type of a field; refuse other types."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{where} is a table of names and values, got {value!r}")
        return build(kind, value, where=f"{where}.")
    options = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        if value is None and type(None) in options:
            return None
        return convert(next(option for option in options if option is not type(None)), value, where=where)
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        if Ellipsis not in options and len(value) != len(options):
            raise ConfigError(f"{where} must be {len(options)} values, got {list(value)}")
        return tuple(convert(options[0], item, where=where) for item in value)
    if kind in (int, float) and isinstance(value, str) and POWER_OF_TEN.fullmatch(value):
        value = float(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and (kind is float or (kind is int and float(value).is_integer())):
        return kind(value)
    expected = kind if isinstance(kind, type) else type(options[0]) if options else object
    expected = get_origin(kind) or expected if get_origin(kind) in (dict, tuple) else expected
    if not isinstance(value, expected) or (isinstance(value, bool) and expected in (int, float)):
        raise ConfigError(f"{where} must be {getattr(expected, '__name__', expected)}, got {value!r}")
    return value


def plain(value: Any) -> Any:
    """Turn tuples into lists, so that YAML needs no tags."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def modernised(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a recipe, written by any version, with the objective as one table."""
    values = dict(values)
    sections = {name: values.pop(name) for name in earlier_sections() if name in values}
    named = values.get("objective", LabelsObjective.kind)
    if not isinstance(named, str):
        if sections and isinstance(named, dict):
            name = next(iter(sections))
            raise ConfigError(f"{name} is now a setting of objective; write {_written(name)}")
        return values
    objective: dict[str, Any] = {"kind": named}
    for name, path in find_objective(named).earlier_settings.items():
        if name not in sections:
            continue
        *_, last = ("objective", *path.split(".")[1:])
        if last == "objective":
            section = sections[name]
            if not isinstance(section, dict):
                raise ConfigError(f"{name} must be a table of names and values, got {section!r}")
            objective |= section
        else:
            objective[last] = sections[name]
    return {**values, "objective": objective}


def modern_path(path: str, *, kind: str) -> str:
    """Return the current path of a setting; refuse one that belongs to another objective than `kind`."""
    first, dot, rest = path.partition(".")
    if first not in earlier_sections():
        return path
    known = find_objective(kind).earlier_settings
    if first not in known:
        owners = [name for name, one in OBJECTIVES.items() if first in one.earlier_settings]
        raise ConfigError(f"{path} goes with objective {' or '.join(owners)}, not with {kind}", option="set")
    return f"{known[first]}{dot}{rest}"


def earlier_sections() -> set[str]:
    """Return the top-level names that sections of objectives had in recipes of version 0.1."""
    return {name for objective in OBJECTIVES.values() for name in objective.earlier_settings}


def _written(name: str) -> str:
    return next(one.earlier_settings[name] for one in OBJECTIVES.values() if name in one.earlier_settings)
