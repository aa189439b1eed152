"""The model that a run starts with: fresh, from trained weights with a new head, or as a run folder describes it."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from vitrine.checkpoints import load
from vitrine.checkpoints.bundled import names_box
from vitrine.checkpoints.licences import licence_to_carry
from vitrine.checkpoints.loading import load_opened
from vitrine.checkpoints.opening import Opened, at_native_aspect, open_weights
from vitrine.checkpoints.record import config_from_json
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, ConfigError, TryOption
from vitrine.evaluation.features import weights_hash
from vitrine.models import Model, ModelConfig, ViTConfig, build, configure, create_model
from vitrine.models.config import Config
from vitrine.models.dense.config import DenseConfig
from vitrine.models.sizes import InputShape, as_size, shown
from vitrine.objectives.teacher import Teacher, TeacherRequest
from vitrine.recipes.recipe import Recipe
from vitrine.runs.records import ClosedFormScore, StartingModel
from vitrine.runtime.devices import seeded
from vitrine.runtime.progress import notice, quiet
from vitrine.runtime.run_record import RunRecord
from vitrine.spelling import some_of

# Pictures are small if the model enlarges them by the first factor; the suggested size enlarges them by the second.
ENLARGED, SMALL_FACTOR = 3, 1.5
# Below this size features tell little: pictures of 32 px lose 25 points at 48 px and 7 at 96 (docs/experiments.md).
LEAST_SUGGESTED = 96
RESNET_STRIDE = 32
# The model of a recipe that names none.
DEFAULT_MODEL = "ViT-Ti/16"
# Options of a model without a head.
HEAD_OPTIONS = ("representation_width", "head_bias")
# Options that fine-tuning may change: they are not part of the trained weights.
FREE_OPTIONS = (
    "dropout", "position_dropout", "projection_dropout", "attention_dropout", "head_dropout", "stochastic_depth",
    "drop_rates", "activation_checkpointing",
)  # fmt: skip


def fresh_model(recipe: Recipe, *, classes: tuple[str, ...]) -> StartingModel:
    """Create the recipe's model with fresh weights, drawn with its seed; without labels it has no head."""
    options = recipe.model_options
    if not recipe.needs_labels:
        options = {name: value for name, value in options.items() if name not in HEAD_OPTIONS}
    with seeded(recipe.training.seed):
        model = create_model(
            recipe.model or DEFAULT_MODEL,
            num_classes=len(classes) if recipe.needs_labels else None,
            image_size=recipe.size,
            **options,
        )
    teacher = load_teacher(recipe, model.config)
    if teacher is not None and recipe.needs_labels:
        teacher.require_classes(classes)
    half = (0.5,) * model.config.channels
    preprocess = Preprocess(size=model.config.image_size, mean=half, std=half)
    if recipe.max_patches is not None:
        preprocess = at_native_aspect(preprocess, model.config, recipe.max_patches)
    return StartingModel(model=model, preprocess=preprocess, teacher=teacher)


def require_trainable(recipe: Recipe) -> None:
    """Refuse a model that the recipe's objective cannot train, before anything is written."""
    patch_size = recipe.model_options.get("patch_size")
    options = {} if patch_size is None else {"patch_size": patch_size}
    config = configure(recipe.model or DEFAULT_MODEL)
    if isinstance(config, ViTConfig):
        config = configure(recipe.model or DEFAULT_MODEL, image_size=recipe.size, **options)
    recipe.objective.check_model(config)


def require_free_options(settings: Iterable[str]) -> None:
    """Refuse to change options of a model that is already trained."""
    for setting in settings:
        path = setting.partition("=")[0].strip()
        section, _, name = path.partition(".")
        if section == "model_options" and name not in FREE_OPTIONS:
            raise ConfigError(
                f"{path} is fixed by the trained weights; fine-tuning can change "
                f"{', '.join(f'model_options.{free}' for free in FREE_OPTIONS)}",
                option="set",
            )


def pretrained_model(
    model: str, recipe: Recipe, *, num_classes: int, weights: Opened | None = None
) -> StartingModel:
    """Load trained weights with a new head of zeros in place of both layers of the old head (section 3.2).

    A variant's name gives fresh weights, drawn with the recipe's seed. `weights` are the model's, if already opened.
    """
    if recipe.whitens_patches:
        raise ConfigError(
            "whitens_patches replaces the patch embedding, so it is for pre-training; set it to false"
        )
    # An equal number of classes does not mean the same classes, so the old head is never kept as a whole.
    with seeded(recipe.training.seed):
        shape = InputShape(size=recipe.size, patch=recipe.patch, max_patches=recipe.max_patches)
        if weights is None:
            loaded = load(model, num_classes=num_classes, image_size=shape, new_head=True)
        else:
            loaded = load_opened(weights, num_classes=num_classes, shape=shape, new_head=True)
    preprocess = loaded.preprocess
    if preprocess.max_patches is not None and recipe.max_patches is None:
        # A model that keeps the aspect ratio by itself needs the same recipes as one that is asked to.
        dataclasses.replace(recipe, max_patches=preprocess.max_patches)
    if recipe.views.crop == "random":  # BiT-HyperRule squashes images to a square, in validation too
        preprocess = dataclasses.replace(preprocess, rule="squash", crop_fraction=1.0)
    is_fresh = loaded.record.layout == "fresh"
    return StartingModel(
        model=with_free_options(loaded.model, recipe), preprocess=preprocess, is_fresh=is_fresh,
        licence=licence_to_carry(loaded.record.licence, layout=loaded.record.layout, is_bundled=names_box(model)),
    )  # fmt: skip


def suggest_smaller_size(pictures: tuple[int, int], config: ModelConfig) -> None:
    """Suggest a smaller image size where pictures are so small that the model would see them enlarged.

    64 px tiles reach 91.1 % in 3.8 minutes at 96 px, and 93.1 % in 19 minutes at 224 px.
    """
    side, own = max(pictures), min(config.image_size)
    step = max(config.token_stride) if isinstance(config, ViTConfig) else RESNET_STRIDE
    smaller_size = math.ceil(max(SMALL_FACTOR * side, LEAST_SUGGESTED) / step) * step
    if not 0 < ENLARGED * side <= own or SMALL_FACTOR * smaller_size > own:
        return
    notice(
        f"Pictures have {shown(pictures)} px and are enlarged to {shown(config.image_size)} px",
        advice=[TryOption("size", "to train several times as fast, less accurately", smaller_size)],
    )


def keep_known_classes(started: Model, model: str, classes: Sequence[str]) -> tuple[str, ...]:
    """Copy the rows of the old head whose classes have the name of a new one, and return these names.

    Nothing is copied if the model has a representation layer: it is replaced too, so the old rows do not fit.
    """
    record = open_weights(model).record
    known = {name: number for number, name in enumerate(record.classes or ())}
    kept = tuple(name for name in classes if name in known)
    if not kept or getattr(record.config, "representation_width", None) is not None:
        return ()
    with quiet():  # its notes were reported when it was loaded
        old, new = load(model).model.head, started.head
    assert old is not None and new is not None
    if not old.weight.any():  # an official file without a trained head
        return ()
    with torch.no_grad():
        for number, name in enumerate(classes):
            if name in known:
                new.weight[number] = old.weight[known[name]]
                new.bias[number] = old.bias[known[name]]
    notice(f"The head starts from the rows of {model} for classes of the same name: {some_of(kept)}")
    return kept


def with_free_options(model: Model, recipe: Recipe) -> Model:
    """Give a trained model the recipe's dropout, stochastic depth and activation checkpointing."""
    config = model.config
    options = {name: value for name, value in recipe.model_options.items() if name in FREE_OPTIONS}
    changed = with_known_options(config, options)
    if changed == config:
        return model
    rebuilt = build(changed)
    rebuilt.load_state_dict(model.state_dict())
    return rebuilt.eval()


def with_known_options(config: Config, options: Mapping[str, Any]) -> Config:
    """Change the fields of a config that it has; of a dense model, those of its ViT."""
    if isinstance(config, DenseConfig):
        return dataclasses.replace(config, vit=with_known_options(config.vit, options))
    known = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: value for name, value in options.items() if name in known})


def described_model(record: RunRecord, recipe: Recipe) -> StartingModel:
    """Build the model of a run that is resumed; its weights come from the checkpoint."""
    config = config_from_json(dict(record.model))
    recomputes = recipe.model_options.get("activation_checkpointing", config.activation_checkpointing)
    config = with_known_options(config, {"activation_checkpointing": recomputes})
    teacher = load_teacher(recipe, config)
    if teacher is not None and teacher.weights != record.teacher:
        raise CheckpointError(
            f"the weights of the teacher {teacher.name} have changed since this run began; restore them, or start a "
            "new run"
        )
    with seeded(recipe.training.seed):
        model = build(config)
    preprocess = Preprocess.from_json(dict(record.preprocess))
    score = None if record.closed_form is None else ClosedFormScore.from_json(record.closed_form)
    return StartingModel(
        model=model, preprocess=preprocess, teacher=teacher, closed_form=score, licence=record.licence
    )


def load_teacher(recipe: Recipe, student: ModelConfig) -> Teacher | None:
    """Load the teacher that the recipe's objective asks for; None without one."""
    request = recipe.objective.teacher_request
    if request is None:
        return None
    opened = open_weights(request.weights)
    if opened.record.layout == "fresh":
        raise ConfigError(
            f"{request.weights} has fresh weights and cannot be a teacher; use a run folder, weights file or hub id",
            option="teacher",
        )
    loaded = load(
        request.weights,
        image_size=teacher_size(request, opened.record.config, student),
        channels=student.channels,
        features_only=not request.has_head,
    )
    return Teacher(
        name=request.weights,
        model=loaded.model.eval().requires_grad_(False),
        preprocess=loaded.preprocess,
        classes=loaded.classes,
        weights=weights_hash(loaded.model, includes_head=True),
        precision=recipe.training.precision,
    )


def teacher_size(request: TeacherRequest, teacher: ModelConfig, student: ModelConfig) -> tuple[int, int]:
    """Return the size at which a ViT has as many patches as the student; a ResNet sees the student's images."""
    if request.size is not None:
        return as_size(request.size)
    if not isinstance(teacher, ViTConfig) or not isinstance(student, ViTConfig):
        return student.image_size
    rows, columns = (
        count * step for count, step in zip(student.grid_size, teacher.token_stride, strict=True)
    )
    return rows, columns
