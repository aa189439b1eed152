"""Convert a recipe to plain values or YAML and back, and change settings by name; unknown ones are refused."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from vitrine.errors import ConfigError
from vitrine.objectives import LabelsObjective, find_objective
from vitrine.recipes.plain_values import (
    build,
    modern_path,
    modernised,
    plain,
    read_value,
    unknown_setting,
)
from vitrine.recipes.recipe import Recipe


def as_values(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain values; the objective is a table with its `kind`."""
    values: dict[str, Any] = plain(dataclasses.asdict(recipe))
    values["objective"] = {"kind": recipe.objective.kind, **values["objective"]}
    return values


def from_values(values: Mapping[str, Any], *, name: str | None = None) -> Recipe:
    """Build a recipe from plain values, those of earlier versions included; `name` is used if they have none."""
    values = modernised(values)
    if "name" not in values and name is not None:
        values["name"] = name
    if not isinstance(values.get("name"), str):
        raise ConfigError("a recipe needs a name", option="recipe")
    table = values.pop("objective", {})
    if not isinstance(table, dict) or not isinstance(table.get("kind", LabelsObjective.kind), str):
        raise ConfigError(f"objective must be a table with a kind, such as kind: labels, got {table!r}")
    table = dict(table)
    kind = find_objective(table.pop("kind", LabelsObjective.kind))
    objective = build(kind, table, where="objective.")
    recipe: Recipe = build(Recipe, values, where="", objective=objective)
    return recipe


def to_yaml(recipe: Recipe) -> str:
    """Write a recipe as YAML, which `from_yaml` reads."""
    return yaml.safe_dump(as_values(recipe), sort_keys=False, allow_unicode=True)


def from_yaml(text: str, *, name: str | None = None, base: Recipe | None = None) -> Recipe:
    """Read a recipe; unknown names and wrong types are refused, missing ones have their defaults.

    A file without a name contains only some settings: they override those of `base`, if given.
    """
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the recipe is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"a recipe is a table of names and values, got {type(values).__name__}")
    if base is not None and "name" not in values:
        values = merged(base, values, name=name)
    return from_values(values, name=name)


def merged(base: Recipe, values: Mapping[str, Any], *, name: str | None) -> dict[str, Any]:
    """Return the values of `base` with some of them changed; changed numbers are no longer adapted to the data."""
    result = as_values(base)
    result |= {"name": name, "claim": f"unmeasured: {base.name} with changes"}
    changed = modernised(values) if "objective" in values else dict(values)
    for key, value in changed.items():
        before: Any = result.get(key)
        is_table = isinstance(before, dict) and isinstance(value, dict)
        is_other = (
            key == "objective" and is_table and value.get("kind", base.objective.kind) != base.objective.kind
        )
        result[key] = {**before, **value} if is_table and not is_other else value
    training = values.get("training")
    named = set(training) if isinstance(training, dict) else set()
    result["asked_for"] = [*base.asked_for, *(key for key in ("warmup_steps", "log_every") if key in named)]
    if "batch_size" in named:
        result["least_steps"] = result["fewest_steps"] = 0
    if "epochs" in values:
        result["fewest_steps"] = 0
    if "total_steps" in named and "epochs" not in values:
        result["epochs"] = None
    return result


def with_settings(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """Apply settings such as `training.lr=3e-4`; a typo is refused with the nearest name."""
    values = as_values(recipe)
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"a setting looks like training.lr=3e-4, got {setting!r}", option="set")
        path, value = modern_path(path.strip(), kind=values["objective"]["kind"]), read_value(text)
        if path in ("objective", "objective.kind"):
            kind = find_objective(str(value))
            if kind.kind != values["objective"]["kind"]:
                values["objective"] = {"kind": kind.kind, **plain(dataclasses.asdict(kind()))}
            continue
        *parents, last = path.split(".")
        place: Any = values
        for depth, name in enumerate([*parents, last]):
            is_free = parents[:depth] == ["model_options"]
            if not isinstance(place, dict) or (name not in place and not is_free):
                raise unknown_setting(path, values)
            if depth < len(parents):
                place = place[name]
        place[last] = value
    return from_values(values)
