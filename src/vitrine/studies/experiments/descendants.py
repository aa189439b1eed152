"""ViT's descendants on little data: T2T's tokens, PEG, a pyramid, words in patches, DeiT's token with a teacher.

Each is compared with the plain ViT of the scale at as many parameters (within 5 %) and as much training compute: if
one step costs more multiply-adds, there are fewer steps. Runs see the data at least 60 times, except at scale tiny.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable

from vitrine.data.augmenting.augment import Augment
from vitrine.models.config import ModelConfig, ViTConfig
from vitrine.models.cost import cost_of
from vitrine.models.pvt_v2 import PVTv2Config
from vitrine.models.stem_configs import TokensToTokenConfig
from vitrine.models.tnt_config import TNTConfig
from vitrine.objectives import DistillationObjective
from vitrine.recipes.recipe import Recipe
from vitrine.reports.charts import Chart
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, points_by
from vitrine.studies.scales import Scale, from_scratch, resnet, vit
from vitrine.studies.verdicts import Finding, ahead

NAME = "descendants"
PLAIN, TOKENS, PEG, PYRAMID, WORDS, TAUGHT = (
    "plain ViT", "+ T2T tokens", "+ PEG", "PVT v2", "TNT", "+ DeiT's token",
)  # fmt: skip
LEAST_EPOCHS = 60
# The same for all: sixty passes over some ten thousand images need it.
AUGMENT = Augment(num_operations=2, magnitude=9, mixup=0.2, cutmix=1.0, label_smoothing=0.1)
# A step of the student is a forward and two backward passes; the teacher adds a forward pass.
TEACHER_SHARE = 1 / 3


def plain(scale: Scale, num_classes: int) -> ViTConfig:
    """Return the plain ViT that the others are compared with."""
    return vit(scale, num_classes=num_classes, stochastic_depth=0.1)


def with_tokens(scale: Scale, num_classes: int) -> ModelConfig:
    """Replace the patch projection by T2T's soft splits; the MLPs are narrower by as much."""
    strides = (4, 2, 2) if scale.is_paper else (2, scale.patch_size // 2)
    stem = TokensToTokenConfig(
        kernels=(7, 3, 3) if scale.is_paper else (3, 3), strides=strides, token_width=max(scale.width // 6, 8)
    )
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
    """Return a PVT v2 with eight blocks; of small images, its first map has every pixel.

    Cells of 4 pixels, as for large images, would leave a fifteenth of the compute: at as much of it, 1,500 passes.
    """
    side = scale.image_size
    shapes = (
        PVTv2Config(
            image_size=(side, side), widths=(width, 2 * width, 5 * width, 8 * width), depths=depths,
            # Reducing convolutions of the paper's size are larger than all the rest of the smallest models.
            reductions=(4, 2, 1, 1) if scale.name == "tiny" else (8, 4, 2, 1),
            first_stride=4 if scale.is_paper else 1, num_classes=num_classes, stochastic_depth=0.1,
        )
        for depths in ((2, 2, 2, 2), (2, 2, 3, 1))
        for width in range(2, scale.width // 4)
    )  # fmt: skip
    return closest(shapes, plain(scale, num_classes))


def with_words(scale: Scale, num_classes: int) -> ModelConfig:
    """Return a TNT: each patch is a sentence of up to 16 words of a sixteenth of its width."""
    side, patch = scale.image_size, scale.patch_size
    shapes = (
        TNTConfig(
            image_size=(side, side), patch_size=(patch, patch), word_stride=max(patch // 4, 1), width=width,
            depth=scale.depth, num_heads=scale.num_heads, mlp_width=4 * width, inner_width=word_width(width),
            inner_num_heads=2, inner_mlp_width=4 * word_width(width), num_classes=num_classes,
            stochastic_depth=0.1,
        )
        for width in range(scale.width // 2, scale.width + 1)
        if width % scale.num_heads == 0
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


def mlp_widths(scale: Scale) -> range:
    """Return the hidden widths to choose from: up to the usual four times the width."""
    return range(scale.width, 4 * scale.width + 1, max(scale.width // 32, 1))


def word_width(width: int) -> int:
    """Return the width of a word: a sixteenth of the patch's, as in TNT-S, in steps of 4."""
    return 4 * max(width // 64, 1)


def closest(configs: Iterable[ModelConfig], wanted: ModelConfig) -> ModelConfig:
    """Return the config whose parameters are closest in number to those of another."""
    target = cost_of(wanted).params
    return min(configs, key=lambda config: abs(cost_of(config).params - target))


def runs(setup: Setup) -> tuple[Run, ...]:
    """List every method; DeiT's token comes after its teacher, a ResNet that is trained for as many steps."""
    scale, seed = setup.scale, setup.seed
    teacher = Run(
        study=NAME, group="teacher", seed=seed, settings={"method": "teacher"}, role="preparation",
        model=resnet(scale, num_classes=setup.num_classes, level=1), recipe=recipe(setup, "teacher", steps(setup)),
    )  # fmt: skip
    listed = [teacher]
    base = cost_of(plain(scale, setup.num_classes)).macs
    for name, make in METHODS.items():
        model, is_taught = make(scale, setup.num_classes), name == TAUGHT
        macs = cost_of(model).macs + (TEACHER_SHARE * cost_of(teacher.model).macs if is_taught else 0)
        made = recipe(setup, name, max(round(steps(setup) * base / macs), 1))
        if is_taught:
            made = made.with_objective(DistillationObjective(learns="hard-logits"))
        listed.append(
            Run(
                study=NAME, group=slug(name), seed=seed, settings={"method": name}, model=model, recipe=made,
                after=teacher.name if is_taught else None, uses="teacher" if is_taught else "weights",
            )
        )  # fmt: skip
    return tuple(listed)


def steps(setup: Setup) -> int:
    """Return the steps of the plain ViT: those of the scale, and at least sixty passes over the data."""
    scale = setup.scale
    if scale.name == "tiny":
        return scale.steps
    return max(scale.steps, math.ceil(LEAST_EPOCHS * setup.num_images / scale.batch_size))


def recipe(setup: Setup, name: str, total_steps: int) -> Recipe:
    """Return the recipe that all methods share, with so many steps."""
    made = from_scratch(setup.scale, seed=setup.seed, name=name, total_steps=total_steps)
    return dataclasses.replace(made, augment=AUGMENT)


def slug(name: str) -> str:
    """Write a name for a folder."""
    return name.removeprefix("+ ").replace("'", "").replace(" ", "-")


def findings(results: Results) -> list[Finding]:
    """Compare every method with the plain ViT."""
    base, spread = results.values(method=PLAIN), results.spread()
    gains: list[Finding] = []
    for name in METHODS:
        if name != PLAIN:
            gains += ahead(
                f"{name} is better than the plain ViT", results.values(method=name), base, spread=spread
            )
    return gains


def charts(results: Results) -> list[Chart]:
    """Show every method."""
    return [
        Chart(
            title="Ours, test accuracy at equal parameters and compute", y_label="Accuracy [%]",
            series={"accuracy": points_by(results, "method", list(METHODS))},
        )
    ]  # fmt: skip


STUDY = Study(
    name=NAME,
    title="ViT's descendants on little data",
    where="arXiv:2101.11986 (T2T-ViT), 2102.10882 (CPVT), 2106.13797 (PVT v2), 2103.00112 (TNT), 2012.12877 (DeiT)",
    claim="Each of these changes makes a ViT better when there is little data: overlapping tokens, positions from "
    "convolutions, a pyramid, words inside patches, a convolutional teacher.",
    rule="Test accuracy at as many parameters (within 5 %) and as much training compute as the plain ViT. Each "
    "method is above it by more than twice the standard error of the difference; below it by as much, the "
    "sentence is contradicted; otherwise it is open.",
    runs=runs,
    findings=findings,
    charts=charts,
    seeds=3,
    departures="The papers compare on ImageNet. The compute of DeiT's token includes the teacher's forward passes, "
    "not the teacher's own training. All methods share one learning rate and one augmentation.",
)
