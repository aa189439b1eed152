"""Every recipe by its name; `register_recipe` adds one from outside the package."""

from collections.abc import Callable

from vitrine.errors import ConfigError
from vitrine.recipes.dense import DENSE
from vitrine.recipes.descendants import DESCENDANTS
from vitrine.recipes.fine_tuning import FINE_TUNING
from vitrine.recipes.pre_training import PRE_TRAINING
from vitrine.recipes.recipe import Recipe
from vitrine.recipes.records import RECORDS
from vitrine.recipes.small_data import SMALL_DATA
from vitrine.recipes.without_labels import WITHOUT_LABELS
from vitrine.spelling import nearest

RECIPES: dict[str, Callable[[], Recipe]] = {
    **PRE_TRAINING,
    **DESCENDANTS,
    **FINE_TUNING,
    **DENSE,
    **SMALL_DATA,
    **RECORDS,
    **WITHOUT_LABELS,
}


def register_recipe(make: Callable[[], Recipe]) -> Callable[[], Recipe]:
    """Register a recipe under its own name; use it as a decorator of the function that returns it."""
    recipe = make()
    known = RECIPES.get(recipe.name)
    if known is not None and known() != recipe:
        raise ConfigError(f"a recipe called {recipe.name!r} is already registered")
    RECIPES[recipe.name] = make
    return make


def find_recipe(name: str) -> Recipe:
    """Return the recipe called `name`; refuse a misspelt one with the three nearest."""
    if name not in RECIPES:
        close = nearest(name, RECIPES, 3)
        raise ConfigError(
            f"no recipe is called {name!r}; nearest: {', '.join(close)}", option="recipe", suggestions=close
        )
    return RECIPES[name]()
