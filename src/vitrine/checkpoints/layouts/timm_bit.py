"""timm's BiT ResNets."""

from dataclasses import dataclass

from vitrine.checkpoints.layouts.bit_npz import bit_config
from vitrine.checkpoints.layouts.layout import Configured, Hints, count, shape_of
from vitrine.checkpoints.layouts.rules import ONE_BY_ONE, Rule, layer, rule
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import BiTConfig, ModelConfig


@dataclass(frozen=True, kw_only=True)
class TimmBiTLayout:
    """timm's ResNetV2."""

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        return "timm BiT"

    def wants_slots(self, config: ModelConfig) -> None:
        """A ResNet has no positions."""
        return

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config, with timm's epsilon in the standardisation."""
        root = shape_of(index, "stem.conv.weight", hints=hints, axes=4)
        stages = count(index, r"stages\.(\d+)\.")
        head = index.get("head.fc.bias")
        return bit_config(
            hints,
            units=tuple(count(index, rf"stages\.{i}\.blocks\.(\d+)\.") for i in range(stages)),
            root_width=root[0],
            channels=root[1],
            num_classes=head.shape[0] if head else None,
            standardisation_variance_eps=1e-8,
        )

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, BiTConfig)
        declared = [rule("stem.conv.weight", "root_conv.weight")]
        for i, num_units in enumerate(config.units):
            for j in range(num_units):
                theirs, ours = f"stages.{i}.blocks.{j}", f"stages.{i}.{j}"
                for k in (1, 2, 3):
                    declared += layer(f"{theirs}.norm{k}", f"{ours}.norm_{k}")
                    declared.append(rule(f"{theirs}.conv{k}.weight", f"{ours}.conv_{k}.weight"))
                if j == 0:
                    declared.append(rule(f"{theirs}.downsample.conv.weight", f"{ours}.projection.weight"))
        declared += layer("norm", "norm")
        if config.num_classes:
            declared.append(rule("head.fc.weight", "head.weight", ONE_BY_ONE))
            declared.append(rule("head.fc.bias", "head.bias"))
        return declared

    def refusal(self, config: ModelConfig) -> str | None:
        """Refuse all models but BiT ResNets."""
        if not isinstance(config, BiTConfig):
            return "timm's ResNetV2 holds only BiT ResNets"
        return (
            None if config.is_published else "only BiT ResNets with a 7x7 root of 64 channels are known there"
        )

    def left_out(self, name: str) -> str | None:
        """Expect only weights in these files."""
        return None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return timm's preprocessing for BiT: resize to the exact size, pixels from -1 to 1."""
        return Preprocess(size=config.image_size, mean=(0.5,) * config.channels, std=(0.5,) * config.channels)


def recognise(index: Index) -> TimmBiTLayout | None:
    """Recognise timm's pre-activation ResNets by their final norm."""
    if "stem.conv.weight" in index and "stages.0.blocks.0.conv1.weight" in index and "norm.weight" in index:
        return TimmBiTLayout()
    return None
