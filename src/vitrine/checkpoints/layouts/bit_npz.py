"""The BiT authors' .npz files."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vitrine.checkpoints.layouts.layout import Configured, Hints, count, shape_of
from vitrine.checkpoints.layouts.rules import HWIO, ONE_BY_ONE_HWIO, Rule, rule
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import BiTConfig, ModelConfig

CONV = "standardized_conv2d"
UNIT_WIDTH = 64  # at width factor 1


@dataclass(frozen=True, kw_only=True)
class BiTNpzLayout:
    """BiT's names; `conv_names`, by folder, if a file numbers its convolutions (`standardized_conv2d_7`)."""

    prefix: str = "resnet/"
    conv_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        return "official BiT npz"

    def conv(self, folder: str) -> str:
        """Name the kernel in a folder."""
        return f"{self.prefix}{folder}/{self.conv_names.get(folder, CONV)}/kernel"

    def wants_slots(self, config: ModelConfig) -> None:
        """A ResNet has no positions."""
        return

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; images can have any size, so 224 is the default."""
        root = shape_of(index, self.conv("root_block"), hints=hints, axes=4)
        stages = count(index, re.escape(self.prefix) + r"block(\d+)/unit")
        units = tuple(
            count(index, re.escape(self.prefix) + rf"block{i + 1}/unit(\d+)/") for i in range(stages)
        )
        head = index.get(f"{self.prefix}head/conv2d/bias")
        return bit_config(
            hints,
            units=units,
            root_width=root[3],
            channels=root[2],
            num_classes=head.shape[0] if head else None,
        )

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every array."""
        assert isinstance(config, BiTConfig)
        p = self.prefix
        declared = [rule(self.conv("root_block"), "root_conv.weight", HWIO)]
        for i, num_units in enumerate(config.units):
            for j in range(num_units):
                theirs, ours = f"block{i + 1}/unit{j + 1:02d}", f"stages.{i}.{j}"
                for k, letter in enumerate("abc", start=1):
                    declared += norm(f"{p}{theirs}/{letter}/group_norm", f"{ours}.norm_{k}")
                    declared.append(rule(self.conv(f"{theirs}/{letter}"), f"{ours}.conv_{k}.weight", HWIO))
                if j == 0:
                    declared.append(rule(self.conv(f"{theirs}/a/proj"), f"{ours}.projection.weight", HWIO))
        declared += norm(f"{p}group_norm", "norm")
        if config.num_classes:
            declared.append(rule(f"{p}head/conv2d/kernel", "head.weight", ONE_BY_ONE_HWIO))
            declared.append(rule(f"{p}head/conv2d/bias", "head.bias"))
        return declared

    def refusal(self, config: ModelConfig) -> str | None:
        """Refuse all models but BiT ResNets."""
        if not isinstance(config, BiTConfig):
            return "a BiT .npz holds only BiT ResNets"
        return (
            None if config.is_published else "only BiT ResNets with a 7x7 root of 64 channels are known there"
        )

    def left_out(self, name: str) -> str | None:
        """Expect only weights in these files."""
        return "training state" if name.rsplit("/", maxsplit=1)[-1] == "global_step" else None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return BiT's preprocessing: resize to the exact size, pixels from -1 to 1."""
        return Preprocess(size=config.image_size, mean=(0.5,) * config.channels, std=(0.5,) * config.channels)


def recognise(index: Index) -> BiTNpzLayout | None:
    """Locate BiT's root under any prefix, and recognise how the convolutions are numbered."""
    pattern = re.compile(
        rf"(?P<prefix>.*?)(?P<folder>root_block|block\d+/.*)/(?P<conv>{CONV}(?:_\d+)?)/kernel$"
    )
    matches = [match for name in index if (match := pattern.match(name))]
    root = next((match for match in matches if match["folder"] == "root_block"), None)
    if root is None:
        return None
    names = {
        match["folder"]: match["conv"]
        for match in matches
        if match["prefix"] == root["prefix"] and match["conv"] != CONV
    }
    return BiTNpzLayout(prefix=root["prefix"], conv_names=names)


def bit_config(
    hints: Hints,
    *,
    units: tuple[int, ...],
    root_width: int,
    channels: int,
    num_classes: int | None,
    **options: float,
) -> Configured:
    """Build a BiT config; the file determines everything but the image size."""
    if len(units) != 4 or root_width % UNIT_WIDTH:
        raise CheckpointError(
            f"{hints.path} holds a ResNet with {len(units)} stages and a root of {root_width} channels; "
            f"a BiT has 4 stages and a multiple of {UNIT_WIDTH}"
        )
    said = hints.image_size or hints.asked_size
    size = said or (224, 224)
    notes = () if said else ("a ResNet's file does not contain the image size; 224 assumed",)
    first, second, third, fourth = units
    config = BiTConfig(
        image_size=size,
        channels=channels,
        units=(first, second, third, fourth),
        width_factor=root_width // UNIT_WIDTH,
        num_classes=num_classes,
        **options,  # type: ignore[arg-type]
    )
    return Configured(config, notes)


def norm(theirs: str, ours: str) -> list[Rule]:
    """Declare scale and bias of a group norm."""
    return [rule(f"{theirs}/gamma", f"{ours}.weight"), rule(f"{theirs}/beta", f"{ours}.bias")]
