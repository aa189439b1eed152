"""Functions that return a frozen `Recipe`: the paper's Tables 3 and 4 and small-data recipes, each with its claim."""

from vitrine.recipes.recipe import Recipe
from vitrine.recipes.recipe_values import with_settings
from vitrine.recipes.registry import RECIPES, find_recipe, register_recipe

__all__ = ["RECIPES", "Recipe", "find_recipe", "register_recipe", "with_settings"]
