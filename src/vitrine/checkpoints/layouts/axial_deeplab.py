"""The files of Axial-DeepLab's classification code (csrhddlam/axial-deeplab): `axial26s.pth`. They are read only.

Written files would lack the tables of indices that the code keeps in its state and insists on.
"""

from dataclasses import dataclass

from vitrine.checkpoints.layouts.layout import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Configured,
    Hints,
    count,
    shape_of,
)
from vitrine.checkpoints.layouts.preprocessing import centre_cropped
from vitrine.checkpoints.layouts.rules import TRANSPOSED, Rule, View, layer, rule
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import AxialResNetConfig, ModelConfig

BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
# A linear layer stored as a 1-D convolution.
ONE_WIDE = View("reshaped", lambda tensor: tensor[:, :, None])
# Pixels per side for one cell of the first stage.
ROOT_STRIDE = 4
CROP_FRACTION = 224 / 256
ATTENTIONS = {"hight_block": "column_attention", "width_block": "row_attention"}


@dataclass(frozen=True, kw_only=True)
class AxialDeepLabLayout:
    """The names of the authors' code."""

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        return "Axial-DeepLab"

    def wants_slots(self, config: ModelConfig) -> None:
        """A ResNet has no token of its own."""
        return

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; the file determines all of it."""
        width, channels, _, _ = shape_of(index, "conv1.weight", hints=hints, axes=4)
        inside = shape_of(index, "layer1.0.conv_down.weight", hints=hints, axes=4)[0]
        both, rows = shape_of(index, "layer1.0.hight_block.relative", hints=hints, axes=2)
        columns = shape_of(index, "layer1.0.width_block.relative", hints=hints, axes=2)[1]
        stages = count(index, r"layer(\d+)\.")
        head = index.get("fc.bias")
        if inside % width or 2 * inside % both:
            raise CheckpointError(
                f"{hints.path} holds attention of {inside} channels with {both} positions each, after a root of "
                f"{width} channels; this is no Axial-ResNet, or the file is damaged"
            )
        config = AxialResNetConfig(
            image_size=((rows + 1) // 2 * ROOT_STRIDE, (columns + 1) // 2 * ROOT_STRIDE),
            channels=channels,
            units=tuple(count(index, rf"layer{i + 1}\.(\d+)\.") for i in range(stages)),
            width=width,
            attention_factor=inside // width,
            num_heads=2 * inside // both,
            norm="batch_norm",
            norm_eps=1e-5,
            num_classes=head.shape[0] if head else None,
        )
        return Configured(config)

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, AxialResNetConfig)
        declared = [rule("conv1.weight", "root_conv.weight"), *batch_norm("bn1", "root_norm")]
        for stage, num_units in enumerate(config.units):
            for unit in range(num_units):
                theirs, ours = f"layer{stage + 1}.{unit}", f"stages.{stage}.blocks.{unit}"
                for their_conv, their_norm, number in (("conv_down", "bn1", 1), ("conv_up", "bn2", 3)):
                    declared.append(rule(f"{theirs}.{their_conv}.weight", f"{ours}.conv_{number}.weight"))
                    declared += batch_norm(f"{theirs}.{their_norm}", f"{ours}.norm_{number}")
                for their_part, our_part in ATTENTIONS.items():
                    declared += attention(f"{theirs}.{their_part}", f"{ours}.{our_part}")
                if unit == 0:
                    declared.append(rule(f"{theirs}.downsample.0.weight", f"{ours}.shortcut.0.weight"))
                    declared += batch_norm(f"{theirs}.downsample.1", f"{ours}.shortcut.1")
        return [*declared, *(layer("fc", "head") if config.num_classes else ())]

    def refusal(self, config: ModelConfig) -> str | None:
        """Refuse all models."""
        return "Axial-DeepLab's files are read only; the layout vitrine holds any model"

    def left_out(self, name: str) -> str | None:
        """Skip the tables of indices, which follow from the length of a line."""
        return "indices of offsets" if name.endswith(".flatten_index") else None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the authors' evaluation: shorter side 256, a centre crop of 224, ImageNet's statistics."""
        return centre_cropped(
            config,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            crop_fraction=CROP_FRACTION,
            interpolation="bilinear",
        )


def batch_norm(theirs: str, ours: str) -> list[Rule]:
    """Declare a batch norm with its statistics."""
    return [rule(f"{theirs}.{part}", f"{ours}.{part}") for part in BATCH_NORM]


def attention(theirs: str, ours: str) -> list[Rule]:
    """Declare attention along one direction; both codes order channels by head, and offsets alike."""
    return [
        rule(f"{theirs}.qkv_transform.weight", f"{ours}.to_qkv.weight", ONE_WIDE),
        rule(f"{theirs}.relative", f"{ours}.positions.table", TRANSPOSED),
        *batch_norm(f"{theirs}.bn_qkv", f"{ours}.norm_qkv"),
        *batch_norm(f"{theirs}.bn_similarity", f"{ours}.norm_logits"),
        *batch_norm(f"{theirs}.bn_output", f"{ours}.norm_out"),
    ]


def recognise(index: Index) -> AxialDeepLabLayout | None:
    """Recognise the code by its name of the attention along columns."""
    return AxialDeepLabLayout() if "layer1.0.hight_block.qkv_transform.weight" in index else None
