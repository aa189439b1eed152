"""`vitrine recipes`: every recipe with its claim, and one of them in full."""

from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented

if TYPE_CHECKING:
    from vitrine.jobs.recipes import RecipeList


@documented
def list_recipes(
    name: Annotated[
        str | None, Doc("Recipe to show with all its settings [default: list all recipes]")
    ] = None,
) -> "RecipeList":
    """List all recipes with their measured results, or show one with all its settings."""
    from vitrine.jobs.recipes import describe_recipes

    return describe_recipes(name)
