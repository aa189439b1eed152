"""The work behind `vitrine recipes`: all recipes in short, or one with all its settings."""

from dataclasses import dataclass

from vitrine.recipes import RECIPES, find_recipe
from vitrine.recipes.fine_tuning import FINE_TUNING
from vitrine.recipes.recipe_values import to_yaml
from vitrine.runtime.result import Result

# The recipes of finetune and pretrain if none is named.
DEFAULTS = ("photos", "from-scratch")


@dataclass(frozen=True, kw_only=True)
class RecipeLine:
    """One recipe: what it trains, for how long, and its measured result."""

    name: str
    verb: str
    """`pretrain` for recipes that start from fresh weights, `finetune` for those that start from trained ones."""
    model: str | None
    """None for a recipe that works with any model."""
    size: int | None
    """Image side in pixels; None keeps the model's."""
    length: str
    claim: str
    is_default: bool = False
    """Whether its verb uses it if no recipe is named."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RecipeList(Result):
    """All recipes in short, or one in full."""

    recipes: tuple[RecipeLine, ...]
    settings: str | None = None
    """The only one of `recipes` as YAML: every setting that can be changed, in the form of a recipe file."""


def describe_recipes(name: str | None) -> RecipeList:
    """Return every recipe in short, or the one called `name` with all its settings."""
    if name is not None:
        return RecipeList(settings=to_yaml(find_recipe(name)), recipes=(_line(name),))
    return RecipeList(recipes=tuple(map(_line, RECIPES)))


def _line(name: str) -> RecipeLine:
    recipe = find_recipe(name)
    steps, epochs = recipe.training.total_steps, recipe.epochs
    return RecipeLine(
        name=name,
        verb="finetune" if name in FINE_TUNING else "pretrain",
        is_default=name in DEFAULTS,
        model=recipe.model,
        size=recipe.size,
        length=f"{steps:,} steps" if epochs is None else f"{epochs:g} epochs",
        claim=recipe.claim,
    )
