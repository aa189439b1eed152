"""`vitrine models`: every variant with what it costs."""

from dataclasses import dataclass
from typing import Annotated

from annotated_doc import Doc

from vitrine.commands import documented

JFT_IMAGES = 303e6  # section 4.1
DEFAULT_EPOCHS = 7  # the shortest of Table 6


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """One line of the table."""

    name: str
    params: int
    image_size: int
    tokens: int | None
    gmacs: float
    exaflops: float


@documented
def list_models(
    *,
    size: Annotated[
        int, Doc("Image height and width in pixels; rounded to what the patches of each model can tile")
    ] = 224,
    num_classes: Annotated[int, Doc("Number of classes")] = 1000,
    images: Annotated[float, Doc("Images in the training set (303e6 is JFT)")] = JFT_IMAGES,
    epochs: Annotated[float, Doc("Passes over the training set")] = DEFAULT_EPOCHS,
) -> list[ModelCost]:
    """List every variant with its parameters, tokens and compute."""
    from vitrine.errors import ConfigError
    from vitrine.models.config import ViTConfig
    from vitrine.models.cost import cost_of, training_exaflops
    from vitrine.models.variants import VARIANTS, configure, resolve

    if images <= 0 or epochs <= 0 or size <= 0:
        raise ConfigError(f"size, images and epochs must be above 0, got {size}, {images:g} and {epochs:g}")
    lines = []
    for name in VARIANTS:
        config, _ = resolve(name)
        stride = config.token_stride[0] if isinstance(config, ViTConfig) else 1
        fitting = max(round(size / stride), 1) * stride
        cost = cost_of(configure(name, image_size=fitting, num_classes=num_classes))
        lines.append(
            ModelCost(
                name=name,
                params=cost.params,
                image_size=fitting,
                tokens=cost.tokens,
                gmacs=cost.macs / 1e9,
                exaflops=training_exaflops(cost.macs, images=images, epochs=epochs),
            )
        )
    return lines
