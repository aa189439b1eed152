"""The trained weights that fine-tuning begins with, in a model with a new head and the recipe's regularisation."""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vitrine.errors import ConfigError

if TYPE_CHECKING:
    from vitrine.checkpoints import Loaded
    from vitrine.recipes import Recipe

# What no weight depends on: of a recipe's options the model's shape is that of the weights, these are the recipe's.
FREE_OPTIONS = ("dropout", "stochastic_depth", "activation_checkpointing")


def require_free_options(settings: Iterable[str]) -> None:
    """Refuse settings of the model that its weights have decided already."""
    for setting in settings:
        path = setting.partition("=")[0].strip()
        room, _, name = path.partition(".")
        if room == "model_options" and name not in FREE_OPTIONS:
            raise ConfigError(
                f"{path} belongs to the weights that fine-tuning begins with; what can be set is "
                f"{', '.join(f'model_options.{free}' for free in FREE_OPTIONS)}"
            )


def load_to_tune(model: str, recipe: "Recipe", *, num_classes: int) -> "Loaded":
    """Load weights with a new head of zeros in the place of both linear layers of the old one (section 3.2)."""
    from vitrine.checkpoints import load
    from vitrine.models import build

    # As many classes may well be other ones: a head of theirs would begin with their answers.
    loaded = load(model, num_classes=num_classes, image_size=recipe.size, new_head=True)
    if recipe.views.crop == "random":  # BiT-HyperRule squashes images to a square, those it is judged by, too
        squashed = dataclasses.replace(loaded.preprocess, rule="squash", crop_fraction=1.0)
        loaded = dataclasses.replace(loaded, preprocess=squashed)
    config = loaded.model.config
    known = {field.name for field in dataclasses.fields(config)}
    free = {name: recipe.model_options[name] for name in FREE_OPTIONS if name in recipe.model_options}
    changed = dataclasses.replace(config, **{name: value for name, value in free.items() if name in known})
    if changed == config:
        return loaded
    rebuilt = build(changed)
    rebuilt.load_state_dict(loaded.model.state_dict())
    return dataclasses.replace(loaded, model=rebuilt.eval())
