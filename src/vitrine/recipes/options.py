"""From the options of a verb to the recipe of a run."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from vitrine.checkpoints.record import FREE_FIELDS
from vitrine.errors import ConfigError, MissingConfigError
from vitrine.models import configure
from vitrine.models.families import named_variant
from vitrine.objectives import LabelsObjective, Objective, find_objective
from vitrine.recipes.recipe import Recipe
from vitrine.recipes.recipe_values import from_yaml, with_settings
from vitrine.recipes.registry import RECIPES, find_recipe
from vitrine.runtime.progress import notice
from vitrine.spelling import nearest

FROM_SCRATCH = "from-scratch"
ENDINGS = (".yaml", ".yml")
# Options of the commands that are settings of `training` with the same name.
TRAINING_OPTIONS = (
    "batch_size", "lr", "seed", "precision", "log_every", "checkpoint_every", "evaluate_every",
)  # fmt: skip
CHECKPOINTING = "model_options.activation_checkpointing"
CHANGEABLE = (
    *(
        f"training.{name}"
        for name in (
            "total_steps", "lr", "warmup_steps", "decay", "cooldown", "end_lr", "weight_decay", "clip_norm",
            "precision", "compile", "graphs", "micro_batch", "log_every", "evaluate_every", "checkpoint_every",
            "patience",
        )
    ),
    CHECKPOINTING,
)  # fmt: skip


class RecipeOptions(TypedDict, total=False):
    """The settings of a recipe that training commands may change; None keeps a setting."""

    base: str
    """The command's default recipe, which a file with some settings changes."""
    objective: str | None
    target: str | None
    """The target of masked patches."""
    teacher: str | None
    """Weights that distillation learns from."""
    model: str | None
    epochs: float | None
    steps: int | None
    batch_size: int | None
    lr: float | None
    size: int | None
    patch: int | None
    max_patches: int | None
    seed: int | None
    precision: str | None
    log_every: int | None
    checkpoint_every: int | None
    evaluate_every: int | None
    settings: Iterable[str]
    """Any setting by its path, such as `training.lr=3e-4`."""


def chosen_recipe(name: str | None, **options: Unpack[RecipeOptions]) -> Recipe:
    """Find a recipe by name or file, then apply the options; `settings` come last.

    Without a name, the objective's recipe is used; another objective replaces the recipe's.
    """
    objective, steps, epochs = options.get("objective"), options.get("steps"), options.get("epochs")
    is_plain = objective in (None, LabelsObjective.kind)
    default = options.get("base", FROM_SCRATCH) if is_plain else default_recipe(str(objective))
    name = default if name is None else name
    settings = tuple(options.get("settings", ()))
    by_setting = {path.strip(): text for path, _, text in (setting.partition("=") for setting in settings)}
    wanted_epochs = by_setting.get("epochs", epochs)
    wanted_steps = by_setting.get("training.total_steps", steps)
    if wanted_epochs is not None and wanted_steps is not None:
        raise ConfigError(f"use epochs or steps, not both, got {wanted_epochs} and {wanted_steps}")
    recipe = with_kind(read_recipe(name, base=default), objective)
    for option in ("target", "teacher"):
        if options.get(option) is not None:
            recipe = with_objective_option(recipe, option, lasting(str(options[option])))
    if (model := options.get("model")) is not None:
        recipe = with_model(recipe, model)
    named = {name: options.get(name) for name in TRAINING_OPTIONS} | {"total_steps": steps}
    training = {key: value for key, value in named.items() if value is not None}
    asked = training.keys() | {path.removeprefix("training.") for path in by_setting}
    recipe = with_training(recipe, training, asked_for=asked)
    if (size := options.get("size")) is not None:
        recipe = dataclasses.replace(recipe, size=size)
    if (patch := options.get("patch")) is not None:
        recipe = dataclasses.replace(recipe, patch=patch)
    if (max_patches := options.get("max_patches")) is not None:
        recipe = at_native_aspect(recipe, max_patches)
    if epochs is not None:
        recipe = dataclasses.replace(recipe, epochs=epochs)
    if wanted_epochs is not None:
        recipe = dataclasses.replace(recipe, fewest_steps=0)
    chosen = with_settings(recipe, settings)
    return chosen if wanted_steps is None else chosen.with_steps(chosen.training.total_steps)


def at_native_aspect(recipe: Recipe, max_patches: int) -> Recipe:
    """Keep the aspect ratio of images; augmentation that needs images of one shape is disabled."""
    plain = dataclasses.replace(
        recipe.augment, num_operations=0, jitter=0.0, erase=0.0, mixup=0.0, cutmix=0.0, three_augment=False
    )
    if plain != recipe.augment:
        notice(
            "Images at their own aspect ratio are cropped and flipped; the recipe's other augmentation is off"
        )
    return dataclasses.replace(recipe, augment=plain, max_patches=max_patches)


def lasting(name: str) -> str:
    """Return the absolute path of a file or folder, so that a resumed run finds it from any working directory."""
    return str(Path(name).resolve()) if Path(name).exists() else name


def with_training(recipe: Recipe, training: Mapping[str, Any], *, asked_for: Collection[str]) -> Recipe:
    """Change settings of the training; explicit ones, here or in `settings`, are not adapted to the data."""
    kept = (name for name in ("total_steps", "warmup_steps", "log_every") if name in asked_for)
    return dataclasses.replace(
        recipe,
        training=dataclasses.replace(recipe.training, **training),
        asked_for=tuple(dict.fromkeys((*recipe.asked_for, *kept))),
        least_steps=0 if "batch_size" in asked_for else recipe.least_steps,
        fewest_steps=0 if "batch_size" in asked_for else recipe.fewest_steps,
    )


def with_model(recipe: Recipe, model: str) -> Recipe:
    """Give a recipe another model, without the options that belong to its own model's shape or family.

    The name of a published variant (`CPVT-S`) sets its pooling, its positions and all that its weights fix.
    """
    if model == recipe.model:
        return recipe
    options = without_shape(recipe.model_options)
    known = {field.name for field in dataclasses.fields(configure(model))}
    if named_variant(model.strip()) is not None:
        known &= set(FREE_FIELDS)
    unused = [name for name in options if name not in known]
    if unused:
        notice(f"{model} does not take {', '.join(unused)} from the recipe {recipe.name}")
    kept = {name: value for name, value in options.items() if name in known}
    return dataclasses.replace(recipe, model=model, model_options=kept)


def without_shape(model_options: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the options of a model's shape; pooling, positions and dropout stay the recipe's."""
    shape = ("width", "depth", "num_heads", "mlp_width", "patch_size", "representation_width")
    return {key: value for key, value in model_options.items() if key not in shape}


def read_recipe(name: str, *, base: str = FROM_SCRATCH) -> Recipe:
    """Return the recipe of this name, or the one in this file; a file with some settings changes `base`."""
    if is_file(name):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the recipe {name}: {error}") from None
        return from_yaml(text, name=Path(name).stem, base=find_recipe(base))
    path = Path(name)
    if path.suffix in ENDINGS:
        others = [str(other) for ending in ENDINGS for other in path.parent.glob(f"*{ending}")]
        close = nearest(name, others)
        near = f"; did you mean {close[0]}?" if close else ""
        raise MissingConfigError(f"no such file: {name}{near}", suggestions=close)
    return find_recipe(name)


def is_file(name: str) -> bool:
    """Whether a recipe is given as a file rather than by name."""
    return Path(name).suffix in ENDINGS and Path(name).is_file()


def changed_under_way(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """Change settings on which neither the data nor the checkpoints of a run depend."""
    settings = tuple(settings)
    changed = with_settings(recipe, settings)
    paths = [setting.partition("=")[0].strip() for setting in settings]
    for path in paths:
        if path not in CHANGEABLE:
            raise ConfigError(
                f"{path} cannot change in the middle of a run; start a new run, or change one of "
                f"{', '.join(CHANGEABLE)}",
                option="set",
            )
    return dataclasses.replace(changed, epochs=None) if "training.total_steps" in paths else changed


def default_recipe(objective: str) -> str:
    """Return the name of an objective's recipe; the plain one if it has none."""
    return objective if objective in RECIPES else FROM_SCRATCH


def with_kind(recipe: Recipe, kind: str | None) -> Recipe:
    """Give a recipe the objective of this name, with its default settings, unless it has it already."""
    if kind is None or kind == recipe.objective.kind:
        return recipe
    if kind == LabelsObjective.kind:
        raise ConfigError(
            f"recipe {recipe.name} learns without labels; choose another one, such as {FROM_SCRATCH}",
            option="recipe",
        )
    return recipe.with_objective(find_objective(kind)())


def with_objective_option(recipe: Recipe, name: str, value: Any) -> Recipe:
    """Change one setting of a recipe's objective; refuse one that it does not have."""
    objective: Objective = recipe.objective
    if name not in {one.name for one in dataclasses.fields(objective)}:
        raise ConfigError(f"does not go with objective {objective.kind}", option=name)
    return dataclasses.replace(recipe, objective=dataclasses.replace(objective, **{name: value}))
