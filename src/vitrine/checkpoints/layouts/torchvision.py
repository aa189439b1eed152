"""torchvision's ViTs."""

from dataclasses import dataclass

from vitrine.checkpoints.layouts.layout import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Configured,
    Hints,
    count,
    refuse_odd_vit,
    shape_of,
    vit_config,
)
from vitrine.checkpoints.layouts.preprocessing import centre_cropped
from vitrine.checkpoints.layouts.rules import Rule, layer, rule
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import ModelConfig, ViTConfig

CROP = 224 / 256  # torchvision's evaluation preset


@dataclass(frozen=True, kw_only=True)
class TorchvisionLayout:
    """torchvision's names; old files call the MLP's layers `linear_1` and `linear_2`."""

    has_old_mlp: bool = False

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        return "torchvision"

    @property
    def mlp(self) -> tuple[str, str]:
        """Return the names of the MLP's layers."""
        return ("linear_1", "linear_2") if self.has_old_mlp else ("0", "3")

    def wants_slots(self, config: ModelConfig) -> bool:
        """torchvision's table begins with the class token's position."""
        return True

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; torchvision's files do not record the number of heads."""
        first = f"encoder.layers.encoder_layer_0.mlp.{self.mlp[0]}.weight"
        head, pre = index.get("heads.head.bias"), index.get("heads.pre_logits.bias")
        return vit_config(
            index,
            hints,
            patch_kernel=shape_of(index, "conv_proj.weight", hints=hints, axes=4),
            table="encoder.pos_embedding",
            depth=count(index, r"encoder\.layers\.encoder_layer_(\d+)\."),
            num_slots=1,
            num_heads=None,
            mlp_width=shape_of(index, first, hints=hints, axes=2)[0],
            representation_width=pre.shape[0] if pre else None,
            num_classes=head.shape[0] if head else None,
            gelu="erf",
            norm_eps=1e-6,
            position_resampling="bicubic_aligned",
        )

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, ViTConfig)
        declared = layer("conv_proj", "patch_projection")
        declared += [
            rule("class_token", "class_token"),
            rule("encoder.pos_embedding", "positions.0.table"),
        ]
        for i in range(config.depth):
            theirs, ours = f"encoder.layers.encoder_layer_{i}", f"blocks.{i}"
            declared += layer(f"{theirs}.ln_1", f"{ours}.norm_1")
            for kind in ("weight", "bias"):
                fused = f"{theirs}.self_attention.in_proj_{kind}"
                declared.append(rule(fused, f"{ours}.attention.to_qkv.{kind}"))
            declared += layer(f"{theirs}.self_attention.out_proj", f"{ours}.attention.to_out")
            declared += layer(f"{theirs}.ln_2", f"{ours}.norm_2")
            declared += layer(f"{theirs}.mlp.{self.mlp[0]}", f"{ours}.mlp.expand")
            declared += layer(f"{theirs}.mlp.{self.mlp[1]}", f"{ours}.mlp.contract")
        declared += layer("encoder.ln", "norm")
        if config.representation_width:
            declared += layer("heads.pre_logits", "representation")
        if config.num_classes:
            declared += layer("heads.head", "head")
        return declared

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why torchvision's VisionTransformer cannot hold a model."""
        return refuse_odd_vit(
            config,
            where="torchvision",
            instead="the layouts timm and vitrine can",
            representation=True,
            only_erf=True,
            only_square=True,
        )

    def left_out(self, name: str) -> str | None:
        """Expect only weights in these files."""
        return None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return torchvision's evaluation preset."""
        return centre_cropped(
            config, mean=IMAGENET_MEAN, std=IMAGENET_STD, crop_fraction=CROP, interpolation="bilinear"
        )


def recognise(index: Index) -> TorchvisionLayout | None:
    """Recognise torchvision's names, old or new."""
    if "conv_proj.weight" not in index or "encoder.pos_embedding" not in index:
        return None
    old = "encoder.layers.encoder_layer_0.mlp.linear_1.weight" in index
    return TorchvisionLayout(has_old_mlp=old)
