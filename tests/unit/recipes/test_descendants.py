"""The recipes of ViT's descendants: published figures, and what the papers' commands set."""

import pytest

from vitrine.models import configure
from vitrine.recipes import RECIPES, find_recipe
from vitrine.recipes.descendants import DESCENDANTS
from vitrine.recipes.options import chosen_recipe
from vitrine.runtime.progress import listening


@pytest.mark.parametrize("name", DESCENDANTS)
def test_each_names_its_figure_and_that_it_is_unmeasured_here(name: str) -> None:
    recipe = RECIPES[name]()
    assert recipe.name == name
    assert (
        "% top-1 on ImageNet" in recipe.claim
        and "arXiv:" in recipe.claim
        and "unmeasured here" in recipe.claim
    )
    if recipe.model is not None:
        size = recipe.size or 224
        assert configure(recipe.model, image_size=size, **recipe.model_options).image_size == (size, size)


def test_deit_iii_trains_as_its_readme_says() -> None:
    recipe = find_recipe("imagenet-deit-iii-s16")
    training = recipe.training
    assert (training.optimizer, training.lr, training.batch_size, training.weight_decay) == (
        "lamb",
        4e-3,
        2048,
        0.05,
    )
    assert (recipe.epochs, recipe.size, recipe.views.repeats) == (800, 224, 3)
    assert (
        recipe.augment.three_augment and recipe.augment.jitter == 0.3 and recipe.augment.label_smoothing == 0
    )
    assert recipe.objective.loss == "binary"  # type: ignore[attr-defined]
    assert recipe.model_options == {"stochastic_depth": 0.05}


def test_deeper_pyramids_clip_their_gradients_and_lite_t2t_decays_less() -> None:
    assert find_recipe("imagenet-pvt-v2-b2").training.clip_norm is None
    assert find_recipe("imagenet-pvt-v2-b3").training.clip_norm == 1.0
    assert find_recipe("imagenet-t2t-vit-7").training.weight_decay == 0.03
    assert find_recipe("imagenet-t2t-vit-7").views.repeats == 1


class Ear:
    """Keeps what a user would read."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def __getattr__(self, name: str) -> object:
        return lambda *arguments, **options: None

    def notice(self, text: str, advice: object = ()) -> None:
        self.notices.append(text)


@pytest.mark.parametrize(
    ("model", "unused"),
    [("BiT-R50x1", {"pooling", "positions", "stochastic_depth"}), ("PVT-v2-B0", {"pooling", "positions"})],
)
def test_another_family_of_models_drops_the_options_it_does_not_have_and_says_so(
    model: str, unused: set[str]
) -> None:
    """`pretrain --model BiT-R50x1` ended with an error about the recipe's pooling."""
    ear = Ear()
    with listening(ear):  # type: ignore[arg-type]
        recipe = chosen_recipe(None, model=model)
    before = find_recipe("from-scratch").model_options
    assert recipe.model_options == {name: value for name, value in before.items() if name not in unused}
    assert len(ear.notices) == 1 and all(name in ear.notices[0] for name in unused)
    configure(model, **recipe.model_options)
