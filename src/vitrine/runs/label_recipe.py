"""The recipe adapted to the labels of the data: several labels per image, or classes with very different counts."""

from dataclasses import replace

from vitrine.data.auditing.issues import are_uneven
from vitrine.data.sources.source import Source
from vitrine.errors import TryOption
from vitrine.objectives import LabelsObjective
from vitrine.recipes.recipe import Recipe
from vitrine.runs.run_data import RunData
from vitrine.runtime.progress import notice


def for_labels_of(data: RunData, recipe: Recipe) -> Recipe:
    """Adapt a recipe to its labels: a sigmoid loss for several per image, equal weight for uneven classes."""
    if not recipe.objective.classifies:
        return recipe
    if not data.train.is_multi_label:
        return for_uneven_classes(data.train, recipe)
    objective = recipe.objective.for_labels(is_multi_label=True)
    changes = ["sigmoid loss instead of softmax"] if objective != recipe.objective else []
    changes += ["no label smoothing"] if recipe.augment.label_smoothing else []
    if changes:
        notice(f"Images have several labels: {', '.join(changes)}")
    return replace(recipe, objective=objective, augment=replace(recipe.augment, label_smoothing=0.0))


def for_uneven_classes(train: Source, recipe: Recipe) -> Recipe:
    """Give every class the same weight if some have many more images than others, unless the recipe decides it."""
    objective = recipe.objective
    if not recipe.solves_head or not isinstance(objective, LabelsObjective) or objective.loss != "softmax":
        return recipe
    if objective.logit_adjustment is not None:
        return recipe
    if not are_uneven(train.counts()):
        return recipe
    counts = [int(count) for count in train.counts() if count]
    notice(
        f"Classes are uneven, {min(counts):,} to {max(counts):,} images: the loss is logit-adjusted, so that every "
        "class counts equally",
        advice=[TryOption("set", "to weight every image equally", "objective.logit_adjustment=0")],
    )
    return replace(recipe, objective=replace(objective, logit_adjustment=1.0))
