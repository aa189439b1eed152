"""The authors' files of DeiT III, and of "Three things everyone should know about Vision Transformers".

The names are timm's except for LayerScale (`gamma_1`), parallel branches (`attn1`, `norm11`, `gamma_1_1`) and the
hMLP stem, whose steps are numbered.
"""

from dataclasses import dataclass
from typing import Literal

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
from vitrine.checkpoints.layouts.timm import TimmLayout
from vitrine.checkpoints.layouts.timm_parts import named_rules
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.deit3 import NUMERICS
from vitrine.models.stem_configs import HMlpStemConfig

# Number of each step of the hMLP stem in the authors' sequence, and of its batch norm after it.
HMLP_STEPS = ((0, 1, "stem.conv_1", "stem.norm_1"), (3, 4, "stem.conv_2", "stem.norm_2"))
HMLP_LAST = (6, 7, "patch_projection", "patch_norm")
BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
# Names of the parts of a layer's first branch and of its second.
BRANCHES = (
    {
        "norm_1": "norm1", "attention": "attn", "scale_1": "gamma_1",
        "norm_2": "norm2", "mlp": "mlp", "scale_2": "gamma_2",
    },
    {
        "norm_1": "norm11", "attention": "attn1", "scale_1": "gamma_1_1",
        "norm_2": "norm21", "mlp": "mlp1", "scale_2": "gamma_2_1",
    },
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DeiT3Layout(TimmLayout):
    """The names of the authors' code."""

    family: Literal["timm", "dinov2"] = "timm"

    @property
    def name(self) -> str:
        """The name in reports."""
        return "DeiT III"

    def wants_slots(self, config: ModelConfig) -> bool | None:
        """The class token has no position."""
        return False

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; the number of heads is that of the published width."""
        has_stem = "patch_embed.proj.0.weight" in index
        name = f"patch_embed.proj.{HMLP_LAST[0]}.weight" if has_stem else "patch_embed.proj.weight"
        kernel = shape_of(index, name, hints=hints, axes=4)
        stem, channels = None, kernel[1]
        if has_stem:
            width, channels, _, _ = shape_of(index, "patch_embed.proj.0.weight", hints=hints, axes=4)
            stem = HMlpStemConfig(width=width)
        head = index.get("head.weight")
        return vit_config(
            index,
            hints,
            patch_kernel=kernel,
            table="pos_embed",
            depth=count(index, r"blocks\.(\d+)\."),
            num_slots=0,
            num_heads=None,
            channels=channels,
            stem=stem,
            mlp_width=shape_of(index, "blocks.0.mlp.fc1.weight", hints=hints, axes=2)[0],
            num_branches=2 if "blocks.0.attn1.qkv.weight" in index else 1,
            num_classes=head.shape[0] if head else None,
            qkv_bias="blocks.0.attn.qkv.bias" in index,
            **(NUMERICS | ({} if "blocks.0.gamma_1" in index else {"layer_scale": None})),
        )

    def patch_rules(self, config: ViTConfig) -> list[Rule]:
        """Declare the patch projection, or the three steps of the hMLP stem."""
        if not isinstance(config.stem, HMlpStemConfig):
            return layer("patch_embed.proj", "patch_projection")
        declared = []
        for step, norm, ours, our_norm in (*HMLP_STEPS, HMLP_LAST):
            declared += layer(f"patch_embed.proj.{step}", ours)
            declared += [rule(f"patch_embed.proj.{norm}.{part}", f"{our_norm}.{part}") for part in BATCH_NORM]
        return declared

    def block_rules(self, config: ViTConfig, block: str) -> list[Rule]:
        """Declare one encoder layer and its branches."""
        if config.num_branches == 1:
            return named_rules(config, BRANCHES[0], theirs=block, ours=block)
        return [
            declared
            for j, names in enumerate(BRANCHES)
            for declared in named_rules(config, names, theirs=block, ours=f"{block}.branches.{j}")
        ]

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why the authors' code cannot hold a model."""
        reason = refuse_odd_vit(
            config, where=self.name, instead="the layout vitrine holds every model", layer_scale=True,
            no_qkv_bias=True,
            branches=isinstance(config, ViTConfig) and config.num_branches == len(BRANCHES), hmlp=True, only_erf=True,
            only_square=True,
        )  # fmt: skip
        if reason is None and isinstance(config, ViTConfig) and config.layer_scale is None:
            return "DeiT III always has LayerScale; the layout timm can do without"
        return reason

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the authors' rule: the shorter side, no margin, ImageNet's statistics."""
        return centre_cropped(config, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def recognise(index: Index) -> DeiT3Layout | None:
    """Recognise the authors' names by LayerScale, a second attention or the steps of the hMLP stem."""
    own = ("blocks.0.gamma_1", "blocks.0.attn1.qkv.weight", f"patch_embed.proj.{HMLP_LAST[0]}.weight")
    if "blocks.0.attn.qkv.weight" in index and "pos_embed" in index and any(name in index for name in own):
        return DeiT3Layout()
    return None
