"""The record saved with weights: the model's config, preprocessing, classes, recipe and version."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, ConfigError
from vitrine.models import BiTConfig, ModelConfig, ViTConfig
from vitrine.models.deit3 import is_deit3
from vitrine.models.families import FAMILIES, family_of
from vitrine.models.stem_configs import ResNetStemConfig, StemConfig, stem_from_json, stem_to_json
from vitrine.models.variants import VARIANTS, configure
from vitrine.version import __version__

KEY = "vitrine"
"""Key of our record in config.json and in the metadata of a safetensors file."""
FORMAT = 1
# Options that a variant's name does not determine: size, head, channels, regularisation and numerics.
FREE_FIELDS = (
    "image_size",
    "channels",
    "num_classes",
    "head_bias",
    "unit_length",
    "dropout",
    "attention_dropout",
    "projection_dropout",
    "stochastic_depth",
    "activation_checkpointing",
    "norm_eps",
    "position_resampling",
    "rotary_shift",
    "rotary_jitter",
    "rotary_rescale",
)


@dataclass(frozen=True, kw_only=True)
class Record:
    """Everything that a weights file does not contain."""

    config: ModelConfig
    preprocess: Preprocess
    classes: tuple[str, ...] | None = None
    recipe: Mapping[str, Any] | None = None
    measured: Mapping[str, Any] | None = None
    """Scores of a trained model: `accuracy`, its 95 % `interval`, the `num_images` held out to measure it (left out
    in turn if `is_left_out`), and `false_alarms`, the share of known pictures that "none of these" marks."""
    calibration: Mapping[str, Any] | None = None
    """Temperature that the head was divided by, and the calibration error before and after on held-out images."""
    number: Mapping[str, Any] | None = None
    """For a model whose output is a number: its `name`, and on left-out images `mean_absolute_error`, `r2`,
    `num_images` and `half_width`, half of the 95 % interval of a prediction."""
    licence: str | None = None
    """Licence of the weights that the model started from, as stated beside them."""
    layout: str = "Vitrine"
    """The original source of the weights."""
    version: str = __version__
    checksums: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each file of weights its SHA-256, and the CRC-32 of each tensor in it."""

    @property
    def variant(self) -> str | None:
        """The paper's name of the model, if it has one."""
        return variant_of(self.config)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return {
            "format": FORMAT,
            "version": self.version,
            "variant": self.variant,
            "layout": self.layout,
            "model": config_to_json(self.config),
            "preprocess": self.preprocess.to_json(),
            "classes": list(self.classes) if self.classes else None,
            "recipe": dict(self.recipe) if self.recipe else None,
            **({"licence": self.licence} if self.licence else {}),
            **({"measured": dict(self.measured)} if self.measured else {}),
            **({"calibration": dict(self.calibration)} if self.calibration else {}),
            **({"number": dict(self.number)} if self.number else {}),
            "checksums": {name: dict(sums) for name, sums in self.checksums.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, path: Path) -> "Record":
        """Read a record; refuse a later format."""
        if not isinstance(values, Mapping):
            raise CheckpointError(
                f"{path} holds a record that cannot be read: expected a JSON object, got {values!r}"
            )
        if values.get("format") != FORMAT:
            raise CheckpointError(
                f"{path} was written by a later Vitrine (format {values.get('format')!r}, "
                f"this one reads {FORMAT}); update with: pip install -U vitrine"
            )
        try:
            return cls(
                config=config_from_json(values["model"]),
                preprocess=Preprocess.from_json(values["preprocess"]),
                classes=tuple(values["classes"]) if values.get("classes") else None,
                recipe=values.get("recipe"),
                measured=values.get("measured"),
                calibration=values.get("calibration"),
                number=values.get("number"),
                licence=str(values["licence"]) if values.get("licence") else None,
                layout=str(values.get("layout", "Vitrine")),
                version=str(values.get("version", "")),
                checksums=values.get("checksums") or {},
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"{path} holds a record that cannot be read: {error}") from None


def config_to_json(config: ModelConfig) -> dict[str, Any]:
    """Return a config as plain values, its kind included."""
    values = {"kind": family_of(config).kind, **dataclasses.asdict(config)}
    if isinstance(config, ViTConfig) and config.stem is not None:
        values["stem"] = stem_to_json(config.stem)
    return values


def config_from_json(values: Mapping[str, Any]) -> ModelConfig:
    """Build a config from plain values."""
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }
    kind = options.pop("kind", "ViT")
    if kind not in FAMILIES:
        raise ConfigError(f"models of the family {kind!r} are unknown here; known: {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    known = {field.name for field in dataclasses.fields(family.config)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ConfigError(f"a {kind} has no option {unknown[0]!r}")
    stem = options.get("stem")
    if family.config is ViTConfig and stem is not None:
        options["stem"] = stem_from_json(stem)
    config: ModelConfig = family.config(**options)
    return config


def variant_of(config: ModelConfig) -> str | None:
    """Return the paper's name for a model of this shape, ignoring numerics, image size, head and channels."""
    alike = {
        name: registered
        for name, registered in family_of(config).variants.items()
        if shape_fields(config) == shape_fields(registered)
    }
    for name, registered in alike.items():  # SigLIP and its NaFlex models differ in their resampling alone
        if getattr(registered, "position_resampling", None) == getattr(config, "position_resampling", None):
            return name
    if alike:
        return next(iter(alike))
    if not isinstance(config, ViTConfig | BiTConfig):
        return None
    for name in VARIANTS:
        if shape_named(name) == shape_of(config):
            return name
    return None


@functools.cache
def shape_named(name: str) -> tuple[Any, ...]:
    """Return the shape that a name stands for."""
    return shape_of(configure(name))


def shape_fields(config: ModelConfig) -> dict[str, Any]:
    """Return every field of a config but those that a name leaves free."""
    values = {one.name: getattr(config, one.name) for one in dataclasses.fields(config)}
    if "layer_scale" in values:  # whether it has gains; a name does not give their first value
        values["layer_scale"] = values["layer_scale"] is not None
    return {name: value for name, value in values.items() if name not in FREE_FIELDS}


def shape_of(config: ModelConfig) -> tuple[Any, ...]:
    """Return the config of a name."""
    if isinstance(config, BiTConfig):
        return ("BiT", config.units, config.width_factor, config.width, config.root)
    assert isinstance(config, ViTConfig)  # other families list their variants
    shape = (
        config.patch_size,
        config.width,
        config.depth,
        config.num_branches,
        config.num_heads,
        config.mlp_width,
    )
    return (stem_shape(config.stem), is_deit3(config), *shape)


def stem_shape(stem: StemConfig | None) -> Any:
    """Return the part of a stem that a name determines: for a ResNet its units, width and root."""
    return (stem.units, stem.width, stem.root) if isinstance(stem, ResNetStemConfig) else stem
