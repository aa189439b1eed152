"""Functions that return a frozen `Recipe`: the paper's Tables 3 and 4 and the small ones, each with its claim.

Nothing below `commands/` receives a recipe.
"""

from vitrine.recipes.fine_tuning import FINE_TUNING
from vitrine.recipes.pre_training import PRE_TRAINING
from vitrine.recipes.recipe import Recipe, with_settings
from vitrine.recipes.small_data import SMALL_DATA
from vitrine.recipes.without_labels import WITHOUT_LABELS

RECIPES = {**PRE_TRAINING, **FINE_TUNING, **SMALL_DATA, **WITHOUT_LABELS}

__all__ = [
    "FINE_TUNING",
    "PRE_TRAINING",
    "RECIPES",
    "SMALL_DATA",
    "WITHOUT_LABELS",
    "Recipe",
    "find_recipe",
    "with_settings",
]


def find_recipe(name: str) -> Recipe:
    """Return the recipe called `name`; a misspelt one is refused with the three nearest."""
    from vitrine.errors import ConfigError
    from vitrine.spelling import nearest

    if name not in RECIPES:
        raise ConfigError(f"no recipe is called {name!r}; nearest: {', '.join(nearest(name, RECIPES, 3))}")
    return RECIPES[name]()
