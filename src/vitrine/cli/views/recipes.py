"""How `vitrine recipes` shows its list, or one recipe."""

import itertools
from collections.abc import Iterator

from vitrine.cli.command_line import command, option
from vitrine.cli.lines import Line, Next, Table
from vitrine.jobs.recipes import RecipeLine, RecipeList


def lines(result: RecipeList) -> Iterator[Line]:
    """Show recipes by verb, each claim once, or one recipe as the YAML file that a verb reads."""
    if result.settings is not None:
        (only,) = result.recipes
        yield f"# {command(only.verb, 'DATA', recipe=only.name)}"
        yield from result.settings.rstrip().splitlines()
        return
    for verb in ("finetune", "pretrain"):
        yield command(verb, "DATA", recipe="...")
        own = sorted((one for one in result.recipes if one.verb == verb), key=lambda one: not one.is_default)
        for claim, group in itertools.groupby(own, key=lambda one: one.claim):
            yield Table([row(one) for one in group], indent=2)
            yield f"      {claim}"
    yield Next("recipes", ("NAME",), note=f"all its settings; {option('set')} changes any of them")


def row(recipe: RecipeLine) -> list[str]:
    """Show name, model, image size and length in columns that line up over all tables."""
    pixels = "" if recipe.size is None else f"{recipe.size} px"
    cells = [f"{recipe.name:24}", f"{recipe.model or 'any model':13}", f"{pixels:7}", f"{recipe.length:15}"]
    return [*cells, "default" if recipe.is_default else ""]
