"""From the options that people give to the recipe that will be run."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from vitrine.errors import ConfigError
from vitrine.objectives.patch_targets import Target
from vitrine.recipes import find_recipe
from vitrine.recipes.recipe import (
    LEAST_RECORDS,
    LEAST_WARMUPS,
    Objective,
    Recipe,
    from_yaml,
    with_settings,
    without_labels,
)

FROM_SCRATCH = "from-scratch"


def chosen_recipe(
    name: str | None,
    *,
    objective: Objective | None = None,
    target: Target | None = None,
    teacher: str | None = None,
    model: str | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    size: int | None = None,
    seed: int | None = None,
    precision: str | None = None,
    log_every: int | None = None,
    checkpoint_every: int | None = None,
    evaluate_every: int | None = None,
    settings: Iterable[str] = (),
) -> Recipe:
    """Find a recipe by name or file, then change what was given; `settings` come last.

    Without a name it is that of the objective; another objective than the recipe's takes its place.
    """
    if name is None:
        name = FROM_SCRATCH if objective in (None, "labels") else objective
    assert name is not None
    if epochs is not None and steps is not None:
        raise ConfigError(f"give epochs or steps, not both, got {epochs:g} and {steps}")
    recipe = from_yaml(Path(name).read_text()) if is_file(name) else find_recipe(name)
    recipe = with_objective(recipe, objective=objective, target=target)
    if teacher is not None:
        recipe = with_teacher(recipe, teacher)
    named = {
        "batch_size": batch_size, "lr": lr, "seed": seed, "precision": precision, "log_every": log_every,
        "checkpoint_every": checkpoint_every, "evaluate_every": evaluate_every, "total_steps": steps,
    }  # fmt: skip
    training = {key: value for key, value in named.items() if value is not None}
    if steps is not None:  # a run made short has a short warm-up, and a curve
        training = {**shortened(recipe, steps), **training}
    changes: dict[str, object] = {"training": dataclasses.replace(recipe.training, **training)}  # type: ignore[arg-type]
    if model is not None and model != recipe.model:
        # Another model's shape is its own; what is not shape (pooling, positions, dropout) stays the recipe's.
        shape = ("width", "depth", "num_heads", "mlp_width", "patch_size", "representation_width")
        kept = {key: value for key, value in recipe.model_options.items() if key not in shape}
        changes |= {"model": model, "model_options": kept}
    settings = tuple(settings)
    if batch_size is not None or any(setting.startswith("training.batch_size") for setting in settings):
        changes["least_steps"] = 0  # the batch is what was asked for
    if size is not None:
        changes["size"] = size
    if epochs is not None or steps is not None:
        changes["epochs"] = epochs
    return with_settings(dataclasses.replace(recipe, **changes), settings)  # type: ignore[arg-type]


def shortened(recipe: Recipe, steps: int) -> dict[str, float | int | str]:
    """Return warm-up and logging of a recipe that is to end after `steps`."""
    return {
        "warmup_steps": min(recipe.training.warmup_steps, steps // LEAST_WARMUPS),
        "log_every": min(recipe.training.log_every, max(steps // LEAST_RECORDS, 1)),
    }


def is_file(name: str) -> bool:
    """Whether a recipe is given as a file rather than by name."""
    return Path(name).suffix in (".yaml", ".yml") and Path(name).exists()


def with_objective(recipe: Recipe, *, objective: Objective | None, target: Target | None) -> Recipe:
    """Give a recipe the objective, and masked patches the target, that was asked for."""
    if objective is not None and objective != recipe.objective:
        if objective == "labels":
            raise ConfigError(
                f"recipe {recipe.name} learns without labels; for labels choose another, such as {FROM_SCRATCH}"
            )
        recipe = without_labels(recipe, objective)
    if target is None:
        return recipe
    if recipe.objective != "masked-patches":
        raise ConfigError(f"a target goes with objective masked-patches, got {target} and {recipe.objective}")
    return dataclasses.replace(
        recipe, masked_patches=dataclasses.replace(recipe.masked_patches, target=target)
    )


def with_teacher(recipe: Recipe, teacher: str) -> Recipe:
    """Name the teacher of a distillation, in a way that holds wherever the run is gone on with."""
    if recipe.objective != "distillation":
        raise ConfigError(f"a teacher goes with objective distillation, got {teacher} and {recipe.objective}")
    path = Path(teacher)
    named = str(path.resolve()) if path.exists() else teacher
    return dataclasses.replace(recipe, distillation=dataclasses.replace(recipe.distillation, teacher=named))
