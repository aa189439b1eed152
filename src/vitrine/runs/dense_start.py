"""The model from which training on masks or boxes starts: a trained ViT and a fresh decoder."""

from vitrine.checkpoints import load
from vitrine.checkpoints.bundled import names_box
from vitrine.checkpoints.licences import licence_to_carry
from vitrine.errors import ConfigError
from vitrine.models import ViT, build
from vitrine.models.dense.config import as_encoder
from vitrine.models.dense.model import DenseModel
from vitrine.models.families import family_of
from vitrine.recipes.recipe import Recipe
from vitrine.runs.records import StartingModel
from vitrine.runs.starting_model import with_free_options
from vitrine.runtime.devices import seeded
from vitrine.runtime.progress import notice


def dense_model(model: str, recipe: Recipe, *, classes: tuple[str, ...]) -> StartingModel:
    """Put the recipe's decoder on the ViT of a model; its input size is the recipe's.

    If the model is a dense one for the same classes with the same decoder, its decoder is kept.
    """
    with seeded(recipe.training.seed):
        loaded = load(model, image_size=recipe.size)
        encoder = loaded.model.vit if isinstance(loaded.model, DenseModel) else loaded.model
        if not isinstance(encoder, ViT):
            kind = family_of(loaded.model.config).kind
            raise ConfigError(
                f"masks and boxes are learned on a plain ViT; {model} is a {kind}", option="model"
            )
        config = recipe.objective.dense_config(as_encoder(encoder.config), num_classes=len(classes))
        dense = build(config)
    assert isinstance(dense, DenseModel)
    if loaded.model.config == config and loaded.classes == classes:
        notice(f"The decoder starts from that of {model}, which has the same classes")
        dense.load_state_dict(loaded.model.state_dict())
    else:
        wanted = dense.vit.state_dict()
        dense.vit.load_state_dict({name: encoder.state_dict()[name] for name in wanted})
    preprocess = loaded.preprocess.with_size(config.image_size)
    return StartingModel(
        model=with_free_options(dense, recipe).eval(),
        preprocess=preprocess,
        is_fresh=loaded.record.layout == "fresh",
        licence=licence_to_carry(
            loaded.record.licence, layout=loaded.record.layout, is_bundled=names_box(model)
        ),
    )
