"""The model families: ViT and its hybrids, BiT, and any family registered from outside with one line.

A family is a config (a frozen dataclass with at least `image_size`, `channels`, `num_classes`,
`activation_checkpointing` and `representation_width`, the width of the head's input) and a module that is built
from it. The module must have `config`; `head`, a linear layer or None; `forward` from images to logits; `features`,
which returns at least `representation` and, with a head, `logits`. Saving, loading, training, evaluation and
prediction then work; attention is shown only for models that have it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from vitrine.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of model."""

    kind: str
    """The name in records: `ViT`."""
    config: type[Any]
    build: Callable[[Any], nn.Module]
    cost: Callable[[Any], Any]
    """Maps a config to its `Cost`."""
    variants: Mapping[str, Any] = field(default_factory=dict)
    """Configs by name, for families whose names need no parsing."""


FAMILIES: dict[str, Family] = {}
CONFIG_NAMES = ("image_size", "channels", "num_classes", "activation_checkpointing", "representation_width")


def register_family(family: Family) -> None:
    """Register a model family; its config must have the fields that training, saving and planning read."""
    # Fields without a default are not class attributes, and properties are not fields: check both.
    names = {*dir(family.config), *(one.name for one in fields(family.config))}
    missing = [name for name in CONFIG_NAMES if name not in names]
    if missing:
        raise ConfigError(
            f"{family.config.__name__} has no {', '.join(missing)}, which every model's config needs"
        )
    if family.kind in FAMILIES:
        raise ConfigError(f"a family of models named {family.kind!r} is registered already")
    FAMILIES[family.kind] = family


def family_of(config: object) -> Family:
    """Return the family of a config."""
    for family in FAMILIES.values():
        if type(config) is family.config:
            return family
    raise ConfigError(f"{type(config).__name__} is the config of no known family: {', '.join(FAMILIES)}")


def named_variant(name: str) -> Any | None:
    """Return the config of a registered variant, or None."""
    for family in FAMILIES.values():
        if name in family.variants:
            return family.variants[name]
    return None
