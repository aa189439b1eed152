"""The settings that are hashed for a run's key, in a layout that stays the same from version to version.

The layout is that of version 0.1, so that studies begun with it continue. A setting added later is included only if
it differs from its default: a new setting does not change the keys of runs that do not use it.
"""

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

from vitrine.models.bit_config import BiTConfig
from vitrine.models.config import ModelConfig, ViTConfig
from vitrine.models.stem_configs import ResNetStemConfig
from vitrine.objectives import Objective
from vitrine.recipes import Recipe

# In version 0.1, a recipe had the sections of all objectives, not only of the trained one.
OBJECTIVES: dict[str, Any] = {
    "loss": "softmax",
    "masked_patches": {"target": "mean-color", "corrupted": 0.5, "masked": 0.8, "replaced": 0.1},
    "autoencoder": {
        "hidden": 0.75, "decoder_width": 512, "decoder_depth": 8, "decoder_heads": 16, "normalises": True,
    },
    "self_distillation": {
        "num_prototypes": 65536, "hidden_width": 2048, "bottleneck_width": 256, "student_temperature": 0.1,
        "teacher_temperature": 0.07, "first_teacher_temperature": 0.04, "temperature_warmup": 0.1,
        "momentum": 0.996, "centers": True, "scales": True, "center_momentum": 0.9, "prototypes_wait": 0.01,
    },
    "multi_crop": {
        "num_local": 8, "local_size": None, "source_size": None, "global_area": [0.4, 1.0],
        "local_area": [0.05, 0.4], "colours": 1.0, "flips": True,
    },
    "distillation": {
        "teacher": None, "learns": "features", "class_weight": 1.0, "patch_weight": 1.0, "temperature": 3.0,
        "label_share": 0.5, "teacher_size": None, "caches": False,
    },
}  # fmt: skip
# Names of the settings of version 0.1, by record and by section of a recipe.
RECIPE = ("name", "model", "model_options", "size", "epochs", "least_steps", "sweep", "asked_for")
SECTIONS = {
    "views": ("crop", "area", "flip", "resize_size", "device_share"),
    "augment": (
        "num_operations", "magnitude", "jitter", "erase", "mixup", "cutmix", "label_smoothing", "until",
    ),
    "training": (
        "total_steps", "batch_size", "optimizer", "lr", "warmup_steps", "decay", "end_lr", "boundaries",
        "weight_decay", "decays_all", "betas", "momentum", "clip_norm", "layer_decay", "trains", "frozen_blocks",
        "matrix_lr_factor", "average_decay", "precision", "compile", "graphs", "micro_batch", "seed", "log_every",
        "evaluate_every", "checkpoint_every", "patience",
    ),
}  # fmt: skip
MODELS: dict[type, tuple[str, ...]] = {
    ViTConfig: (
        "image_size", "patch_size", "channels", "width", "depth", "num_heads", "mlp_width", "stem", "num_classes",
        "pooling", "has_class_token", "representation_width", "head_bias", "positions", "position_placement",
        "position_resampling", "has_prefix_positions", "num_registers", "has_distillation_token", "gelu",
        "norm_eps", "norm_after_pooling", "layer_scale", "qkv_bias", "qk_norm", "dropout", "stochastic_depth",
        "activation_checkpointing",
    ),
    BiTConfig: (
        "image_size", "channels", "units", "width_factor", "width", "root", "num_classes", "norm_eps",
        "standardisation_std_eps", "standardisation_variance_eps", "head_bias", "activation_checkpointing",
    ),
    ResNetStemConfig: ("units", "width", "norm_eps", "standardisation_std_eps", "standardisation_variance_eps"),
}  # fmt: skip


def settings_of(model: ModelConfig, recipe: Recipe) -> dict[str, Any]:
    """Return model and recipe in the layout of version 0.1 and, if any are used, `later` settings."""
    later: dict[str, Any] = {}
    ours = _known(recipe, RECIPE, later, path="recipe", others=("claim", "objective", *SECTIONS))
    for name, known in SECTIONS.items():
        ours[name] = _known(getattr(recipe, name), known, later, path=name)
    ours |= _objective(recipe.objective, later)
    settings = {"model": _model(model, later), "recipe": ours}
    return {**settings, "later": later} if later else settings


def _model(config: Any, later: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a model; a family added later is named, and all its settings are `later`."""
    values = _known(config, MODELS.get(type(config), ()), later, path="model", others=("stem",))
    if type(config) not in MODELS:
        values["family"] = type(config).__name__
    stem = getattr(config, "stem", None)
    return values if stem is None else {**values, "stem": _model(stem, later)}


def _objective(objective: Objective, later: dict[str, Any]) -> dict[str, Any]:
    """Return the sections of all objectives, with the settings of this one in its own."""
    sections, values = copy.deepcopy(OBJECTIVES), dataclasses.asdict(objective)
    used: list[str] = []
    for section, path in objective.earlier_settings.items():
        name = path.partition(".")[2]
        if name:  # one setting of the objective was a section of its own
            sections[section] = values[name]
            used.append(name)
        else:
            sections[section] = {setting: values[setting] for setting in sections[section]}
            used += sections[section]
    _known(objective, (), later, path="objective", others=used)
    return {"objective": objective.kind, **sections}


def _known(
    record: Any, names: Iterable[str], later: dict[str, Any], *, path: str, others: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the fields of these names; fields outside these and `others`, if not at their default, are `later`."""
    known = {name: _plain(getattr(record, name)) for name in names}
    for name, value in later_fields(record, (*known, *others)).items():
        later[f"{path}.{name}"] = value
    return known


def later_fields(record: Any, known: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a record that are neither known nor at their default."""
    names, values = set(known), {}
    for field in dataclasses.fields(record):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        value = getattr(record, field.name)
        if field.name not in names and value != default:
            values[field.name] = _plain(value)
    return values


def _plain(value: Any) -> Any:
    return (
        dataclasses.asdict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type)
        else value
    )
