"""The model families: ViT and its hybrids, BiT, and any family registered from outside with one line.

A family is a config, a module that is built from it, and a few facts.

The **config** is a frozen dataclass with at least `image_size`, `channels`, `num_classes`,
`activation_checkpointing` and `representation_width`, the width of the head's input. It
checks its values when created, names the nearest image sizes if it accepts only some, and holds plain values, tuples
and None, so that a record can store it. Recipes set its fields `dropout` and `stochastic_depth`, if it has them.

The **module** is a `Model` (models/model.py): `forward`, `embed`, `features` by name, `attention` layer by layer,
`last_map`, `initialise`; `head` is a linear layer or None. A module from outside needs `forward` and `features` at
least. Names of parameters say where these belong, for layer-wise decay, freezing and weight decay:
`blocks.N` or `stages.S.blocks.N` in order of depth; `norm` and `head` last; everything else is the embedding. Weight
decay skips parameters in `positions` and those not called `weight`.

The **facts** are the fields of `Family`: cost and memory (`cost`), names (`variants`, `aliases`), adaptation to other
channels (`pixel_kernel`) and to another image size (`resample`), and the fields that cannot
be inferred from a file of weights (`untold`).

Every family passes the common checks of tests/unit/models/test_every_family.py: one line adds it there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from vitrine.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of model."""

    kind: str
    """The name in records: `ViT`."""
    config: type[Any]
    build: Callable[[Any], Any]
    """Maps a config to its module."""
    cost: Callable[[Any], Any]
    """Maps a config to its `Cost`."""
    cost_of_patches: Callable[[Any, int], Any] | None = None
    """Maps a config and a number of patches to the `Cost` of a picture of any shape; None: pictures have one size."""
    variants: Mapping[str, Any] = field(default_factory=dict)
    """Configs by name, for families whose names need no parsing."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of variants: those of official code and of timm."""
    pixel_kernel: str | None = None
    """The parameter (width, channels, rows, columns) that reads pixels; None refuses other channels."""
    untold: tuple[str, ...] = ()
    """Fields that cannot be inferred from names and shapes of tensors, such as numbers of heads."""
    resample: Callable[[Any, tuple[int, int]], Mapping[str, Callable[[Tensor], Tensor]]] | None = None
    """Maps a config and a new image size to a function for each parameter that depends on the size."""
    resized: Callable[[Any, tuple[int, int]], Any] | None = None
    """Maps a config and a new image size to the config for it; None replaces its `image_size`."""


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
    raise ConfigError(
        f"{type(config).__name__} is not the config of a registered family: {', '.join(FAMILIES)}"
    )


def untold_options(config: object) -> dict[str, Any]:
    """Return the fields of a config that cannot be inferred from a file of weights alone."""
    return {name: getattr(config, name) for name in family_of(config).untold}


def named_variant(name: str) -> Any | None:
    """Return the config of a registered variant by any of its names, in any case, whatever its tag; or None."""
    wanted = {name.lower(), name.lower().partition(".")[0]}
    for family in FAMILIES.values():
        for alias, variant in family.aliases.items():
            if alias.lower() in wanted:
                return family.variants[variant]
        for variant, config in family.variants.items():
            if variant.lower() in wanted:
                return config
    return None


def variant_names() -> list[str]:
    """List the variants of all families whose names need no parsing."""
    return [name for family in FAMILIES.values() for name in family.variants]
