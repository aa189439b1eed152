"""The models of the study of ViT's descendants: each with as many parameters as the plain ViT of the scale."""

import functools
from collections.abc import Callable, Iterable

from vitrine.models.config import ModelConfig, ViTConfig
from vitrine.models.cost import cost_of
from vitrine.models.pvt_v2 import PVTv2Config
from vitrine.models.stem_configs import TokensToTokenConfig
from vitrine.models.tnt_config import TNTConfig
from vitrine.studies.scales import Scale, vit

PLAIN, TOKENS, PEG, PYRAMID, WORDS, TAUGHT = (
    "plain ViT", "+ T2T tokens", "+ PEG", "PVT v2", "TNT", "+ DeiT's token",
)  # fmt: skip
# Matrix products and our kernels are fast for multiples of it.
ALIGNED = 8
# Largest relative difference in parameters of a pyramid, if its compute is then closer.
CLOSE = 0.04


def plain(scale: Scale, num_classes: int) -> ViTConfig:
    """Return the plain ViT that the others are compared with."""
    return vit(scale, num_classes=num_classes, stochastic_depth=0.1)


def with_tokens(scale: Scale, num_classes: int) -> ModelConfig:
    """Replace the patch projection by T2T's soft splits; narrower MLPs offset its parameters."""
    strides = (4, 2, 2) if scale.is_paper else (2, scale.patch_size // 2)
    stem = TokensToTokenConfig(
        kernels=(7, 3, 3) if scale.is_paper else (3, 3), strides=strides,
        token_width=max(scale.width // 6 // ALIGNED, 1) * ALIGNED,
    )  # fmt: skip
    return closest(
        (
            vit(
                scale, num_classes=num_classes, stochastic_depth=0.1, patch_size=1, stem=stem, mlp_width=width
            )
            for width in mlp_widths(scale)
        ),
        plain(scale, num_classes),
    )


def with_peg(scale: Scale, num_classes: int) -> ModelConfig:
    """Replace the learned positions by a position encoding generator after the first block."""
    return vit(scale, num_classes=num_classes, stochastic_depth=0.1, positions="peg")


def pyramid(scale: Scale, num_classes: int) -> ModelConfig:
    """Return a PVT v2; for small images, its first map has one cell per pixel.

    Cells of 4 pixels, as for large images, would need a fifteenth of the compute per image: for equal compute, 1,500
    passes over the data.
    """
    side, base = scale.image_size, cost_of(plain(scale, num_classes))
    shapes = [
        PVTv2Config(
            image_size=(side, side), widths=(width, 2 * width, 5 * width, 8 * width), depths=depths,
            # Reducing convolutions of the paper's size are larger than all the rest of the smallest models.
            reductions=(4, 2, 1, 1) if scale.name == "tiny" else (8, 4, 2, 1),
            first_stride=4 if scale.is_paper else 1, num_classes=num_classes, stochastic_depth=0.1,
        )
        for depths in ((2, 2, 2, 2), (2, 2, 3, 1), (2, 2, 2, 1), (2, 2, 1, 1), (3, 3, 3, 2))
        for width in range(step_of(scale), scale.width // 4, step_of(scale))
    ]  # fmt: skip
    close = [shape for shape in shapes if abs(cost_of(shape).params / base.params - 1) < CLOSE]
    if not close:
        return closest(shapes, plain(scale, num_classes))
    return min(close, key=lambda shape: abs(cost_of(shape).macs - base.macs))


def with_words(scale: Scale, num_classes: int) -> ModelConfig:
    """Return a TNT: each patch is a sentence of up to 16 words of a sixteenth of its width."""
    side, patch, word = scale.image_size, scale.patch_size, word_width(scale.width)
    shapes = (
        TNTConfig(
            image_size=(side, side), patch_size=(patch, patch), word_stride=max(patch // 4, 1), width=scale.width,
            depth=scale.depth, num_heads=scale.num_heads, mlp_width=mlp_width, inner_width=word,
            inner_num_heads=2, inner_mlp_width=4 * word, num_classes=num_classes, stochastic_depth=0.1,
        )
        for mlp_width in mlp_widths(scale)
    )  # fmt: skip
    return closest(shapes, plain(scale, num_classes))


def taught(scale: Scale, num_classes: int) -> ModelConfig:
    """Give the plain ViT a distillation token and its head."""
    return closest(
        (
            vit(
                scale, num_classes=num_classes, stochastic_depth=0.1, has_distillation_token=True, mlp_width=width
            )
            for width in mlp_widths(scale)
        ),
        plain(scale, num_classes),
    )  # fmt: skip


METHODS: dict[str, Callable[[Scale, int], ModelConfig]] = {
    PLAIN: plain,
    TOKENS: with_tokens,
    PEG: with_peg,
    PYRAMID: pyramid,
    WORDS: with_words,
    TAUGHT: taught,
}


@functools.cache
def model_of(name: str, scale: Scale, num_classes: int) -> ModelConfig:
    """Return the model of a method; cached, because the search for one of equal size is slow."""
    return METHODS[name](scale, num_classes)


def mlp_widths(scale: Scale) -> range:
    """Return the hidden widths to choose from: up to the usual four times the width."""
    return range(scale.width, 4 * scale.width + 1, step_of(scale))


def step_of(scale: Scale) -> int:
    """Return the step between widths to choose from: any width at scale tiny."""
    return 1 if scale.name == "tiny" else ALIGNED


def word_width(width: int) -> int:
    """Return the width of a word: a sixteenth of the patch's, as in TNT-S, in steps of 4."""
    return 4 * max(width // 64, 1)


def closest(configs: Iterable[ModelConfig], wanted: ModelConfig) -> ModelConfig:
    """Return the config whose parameters are closest in number to those of another."""
    target = cost_of(wanted).params
    return min(configs, key=lambda config: abs(cost_of(config).params - target))
