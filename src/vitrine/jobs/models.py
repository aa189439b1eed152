"""The work behind `vitrine models`: what every variant costs."""

from dataclasses import dataclass

from vitrine.models.cost import cost_of, training_exaflops
from vitrine.models.families import variant_names
from vitrine.models.variants import VARIANTS, configure, resolve


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """One variant and its cost."""

    name: str
    params: int
    image_size: int
    tokens: int | None
    gmacs: float
    """Multiply-adds of one image, forward."""
    exaflops: float
    """Compute of a training run, forward and backward."""


def model_costs(*, image_size: int, num_classes: int, images: float, epochs: float) -> list[ModelCost]:
    """Compute the cost of every variant at `image_size`, or at the nearest size that its patches can tile."""
    costs = []
    for name in (*VARIANTS, *variant_names()):
        config, _ = resolve(name)
        stride = getattr(config, "token_stride", (1, 1))[0]
        size = max(round(image_size / stride), 1) * stride
        cost = cost_of(configure(name, image_size=size, num_classes=num_classes))
        costs.append(
            ModelCost(
                name=name,
                params=cost.params,
                image_size=size,
                tokens=cost.tokens,
                gmacs=cost.macs / 1e9,
                exaflops=training_exaflops(cost.macs, images=images, epochs=epochs),
            )
        )
    return costs
