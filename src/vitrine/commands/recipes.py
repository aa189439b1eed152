"""`vitrine recipes`: every recipe with its claim, and one of them in full."""

import itertools
from dataclasses import dataclass
from typing import Annotated

from annotated_doc import Doc

from vitrine.commands import documented

# What finetune and pretrain take where no recipe is named.
DEFAULTS = ("photos", "from-scratch")


@dataclass(frozen=True, kw_only=True)
class RecipeLine:
    """One recipe: what it trains, for how long, and what it has reached."""

    name: str
    verb: str
    """`pretrain` where it begins with fresh weights, `finetune` where with trained ones."""
    model: str | None
    """None where it goes with any."""
    size: int | None
    """Image side in pixels; None keeps the model's."""
    length: str
    claim: str
    is_default: bool = False
    """Whether its verb takes it where none is named."""

    def __str__(self) -> str:
        pixels = "" if self.size is None else f"{self.size} px"
        default = "  the default" if self.is_default else ""
        return f"{self.name:24} {self.model or 'any model':13} {pixels:7} {self.length:15}{default}".rstrip()


@dataclass(frozen=True, kw_only=True)
class RecipeList:
    """What was asked for: all recipes in short, or one in full."""

    recipes: tuple[RecipeLine, ...]
    settings: str | None = None
    """The only one of `recipes` as YAML: what `--set` can change, and what `--recipe FILE` reads."""

    def __str__(self) -> str:
        if self.settings is not None:
            (found,) = self.recipes
            return f"# vitrine {found.verb} DATA --recipe {found.name}\n{self.settings.rstrip()}"
        lines: list[str] = []
        for verb in ("finetune", "pretrain"):
            lines.append(f"vitrine {verb} DATA --recipe ...")
            own = sorted(
                (line for line in self.recipes if line.verb == verb), key=lambda line: not line.is_default
            )
            # A claim is said once for all that share it.
            for claim, alike in itertools.groupby(own, key=lambda line: line.claim):
                lines += [*(f"  {line}" for line in alike), f"      {claim}"]
        return "\n".join(
            [*lines, "Next: vitrine recipes NAME   (all its settings; --set changes any of them)"]
        )


@documented
def list_recipes(
    name: Annotated[
        str | None, Doc("Recipe to show with all its settings [default: list all recipes]")
    ] = None,
) -> RecipeList:
    """List all recipes with their measured results, or show one with all its settings."""
    from vitrine.recipes import RECIPES, find_recipe
    from vitrine.recipes.fine_tuning import FINE_TUNING
    from vitrine.recipes.recipe import to_yaml

    def line(known: str) -> RecipeLine:
        recipe = find_recipe(known)
        steps, epochs = recipe.training.total_steps, recipe.epochs
        return RecipeLine(
            name=known,
            verb="finetune" if known in FINE_TUNING else "pretrain",
            is_default=known in DEFAULTS,
            model=recipe.model,
            size=recipe.size,
            length=f"{steps:,} steps" if epochs is None else f"{epochs:g} epochs",
            claim=recipe.claim,
        )

    if name is not None:
        return RecipeList(settings=to_yaml(find_recipe(name)), recipes=(line(name),))
    return RecipeList(recipes=tuple(line(known) for known in RECIPES))
