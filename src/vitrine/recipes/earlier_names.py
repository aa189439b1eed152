"""Recipes and settings of version 0.1, in which every objective had a top-level section of its own.

`objective: dino` with `self_distillation: {...}` and `multi_crop: {...}` beside it is now a table with `kind: dino`.
Files of version 0.1 are read and resumed; settings by their earlier names keep working.
"""

from collections.abc import Mapping
from typing import Any

from vitrine.errors import ConfigError
from vitrine.objectives import OBJECTIVES, LabelsObjective, find_objective


def modernised(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a recipe with the objective as one table, whatever version wrote them."""
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
    """Return today's path of a setting; refuse one that belongs to another objective than `kind`."""
    first, dot, rest = path.partition(".")
    if first not in earlier_sections():
        return path
    known = find_objective(kind).earlier_settings
    if first not in known:
        owners = [name for name, one in OBJECTIVES.items() if first in one.earlier_settings]
        raise ConfigError(f"{path} goes with objective {' or '.join(owners)}, not with {kind}", option="set")
    return f"{known[first]}{dot}{rest}"


def earlier_sections() -> set[str]:
    """Return the names that sections of objectives had at the top level of a recipe."""
    return {name for objective in OBJECTIVES.values() for name in objective.earlier_settings}


def _written(name: str) -> str:
    return next(one.earlier_settings[name] for one in OBJECTIVES.values() if name in one.earlier_settings)
