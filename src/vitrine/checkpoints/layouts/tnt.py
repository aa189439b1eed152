"""TNT's files: the authors' (huawei-noah) and timm's, which hold the same model under other names."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from vitrine.checkpoints.layouts.layout import Configured, Hints, assumed_heads, count, grid_of, shape_of
from vitrine.checkpoints.layouts.preprocessing import centre_cropped
from vitrine.checkpoints.layouts.rules import Rule, View, layer, rule, split_axis
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, TryOption
from vitrine.models import ModelConfig
from vitrine.models.tnt_config import TNTConfig

WORD_STRIDE = 4
DEFAULT_CROP = 0.9
# Inner heads of the published models by inner width: Ti, S, B.
INNER_HEADS = {12: 2, 24: 4, 40: 4}

# Our names and the two libraries' for everything outside the blocks.
OUTSIDE = (
    ("class_token", "cls_token", "cls_token"),
    ("positions.table", "outer_pos", "patch_pos"),
    ("word_positions", "inner_pos", "pixel_pos"),
    ("word_projection", "patch_embed.proj", "pixel_embed.proj"),
    ("to_patch.norm_1", "proj_norm1", "norm1_proj"),
    ("to_patch.projection", "proj", "proj"),
    ("to_patch.norm_2", "proj_norm2", "norm2_proj"),
    ("norm", "norm", "norm"),
)
# The same inside a block.
INSIDE = (
    ("inner.norm_1", "inner_norm1", "norm_in"),
    ("inner.attention", "inner_attn", "attn_in"),
    ("inner.norm_2", "inner_norm2", "norm_mlp_in"),
    ("inner.mlp", "inner_mlp", "mlp_in"),
    ("to_patch.norm_1", "proj_norm1", "norm1_proj"),
    ("to_patch.projection", "proj", "proj"),
    ("to_patch.norm_2", "proj_norm2", "norm2_proj"),
    ("outer.norm_1", "outer_norm1", "norm_out"),
    ("outer.attention", "outer_attn", "attn_out"),
    ("outer.norm_2", "outer_norm2", "norm_mlp"),
    ("outer.mlp", "outer_mlp", "mlp"),
)
# We keep queries, keys and values in one layer; these files keep queries and keys in one, values in another.
QUERIES_AND_KEYS = View("split", lambda tensor: tensor[: tensor.shape[0] // 3 * 2])
# Zeros that nothing reads, one row per patch. They are in the authors' count of parameters, not in our model: reading
# fills a tensor that is dropped, and writing creates them again.
UNUSED = View("unused zeros", lambda positions: torch.zeros_like(positions[:, 1:]))
VALUES = View("split", lambda tensor: tensor[tensor.shape[0] // 3 * 2 :])


@dataclass(frozen=True, kw_only=True)
class TNTLayout:
    """One model under two sets of names."""

    origin: Literal["official", "timm"]

    @property
    def name(self) -> str:
        """The name in reports."""
        return "TNT" if self.origin == "official" else "timm TNT"

    def wants_slots(self, config: ModelConfig) -> None:
        """The class token always has a position."""
        return

    def theirs(self, names: tuple[str, str, str]) -> str:
        """Choose a name of this origin."""
        return names[1] if self.origin == "official" else names[2]

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; numbers of heads are not in the files."""
        kernel = shape_of(index, f"{self.theirs(OUTSIDE[3])}.weight", hints=hints, axes=4)
        inner_width, width = kernel[0], shape_of(index, "cls_token", hints=hints, axes=3)[2]
        table = self.theirs(OUTSIDE[1])
        words = index[self.theirs(OUTSIDE[2])].shape
        num_words = words[1] if self.origin == "official" else math.prod(words[2:])
        patch = WORD_STRIDE * math.isqrt(num_words)
        mlp, inner_mlp = (
            shape_of(index, f"blocks.0.{self.theirs(INSIDE[i])}.fc1.weight", hints=hints, axes=2)[0]
            for i in (10, 3)
        )
        fold = shape_of(index, "blocks.0.proj.weight", hints=hints, axes=2)[1]
        if "blocks.0.proj.bias" in index or fold != num_words * inner_width:
            raise CheckpointError(
                f"{hints.path} holds timm's legacy TNT, whose words are cut from a convolution of the whole image; "
                "only the published TNT can be loaded"
            )
        grid = grid_of(
            shape_of(index, table, hints=hints, axes=3)[1] - 1, (patch, patch), table=table, hints=hints
        )
        head, notes = index.get("head.bias"), []
        num_heads = hints.num_heads or assumed_heads(width, path=hints.path)
        inner_heads = hints.options.get("inner_num_heads") or INNER_HEADS.get(inner_width)
        if inner_heads is None:
            raise CheckpointError(
                f"{hints.path} does not contain the number of inner attention heads, and no published TNT has the "
                f"inner width {inner_width}",
                advice=[TryOption("options", "to set inner_num_heads")],
            )
        if hints.num_heads is None or "inner_num_heads" not in hints.options:
            notes.append(
                f"the file does not contain the numbers of heads; {num_heads} assumed for width {width} and "
                f"{inner_heads} for inner width {inner_width}"
            )
        config = TNTConfig(
            image_size=(grid[0] * patch, grid[1] * patch),
            patch_size=(patch, patch),
            word_stride=WORD_STRIDE,
            channels=kernel[1],
            width=width,
            depth=count(index, r"blocks\.(\d+)\."),
            num_heads=num_heads,
            mlp_width=mlp,
            inner_width=inner_width,
            inner_num_heads=inner_heads,
            inner_mlp_width=inner_mlp,
            num_classes=head.shape[0] if head else None,
            qkv_bias=f"blocks.0.{self.theirs(INSIDE[1])}.qk.bias" in index,
        )
        return Configured(config, tuple(notes))

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, TNTConfig)
        declared = [rule(self.theirs(names), names[0]) for names in OUTSIDE[:2]]
        # timm keeps the words' positions as a map.
        side = config.patch_size[0] // config.word_stride
        as_map = View("transposed", lambda table: split_axis(table.transpose(1, 2), 2, side))
        positions = self.theirs(OUTSIDE[2]), OUTSIDE[2][0]
        declared.append(rule(*positions) if self.origin == "official" else rule(*positions, as_map))
        if self.origin == "official":
            declared.append(rule("outer_tokens", OUTSIDE[1][0], UNUSED))
        for names in OUTSIDE[3:]:
            declared += layer(self.theirs(names), names[0])
        for i in range(config.depth):
            for names in INSIDE:
                declared += self.block_rules(
                    f"blocks.{i}.{self.theirs(names)}", f"blocks.{i}.{names[0]}", config=config
                )
        return declared + (layer("head", "head") if config.num_classes else [])

    def block_rules(self, theirs: str, ours: str, *, config: TNTConfig) -> list[Rule]:
        """Declare one part of a block."""
        if ours.endswith("attention"):
            kinds = ("weight", "bias") if config.qkv_bias else ("weight",)
            split = [
                rule(f"{theirs}.{part}.{kind}", f"{ours}.to_qkv.{kind}", view)
                for kind in kinds
                for part, view in (("qk", QUERIES_AND_KEYS), ("v", VALUES))
            ]
            return [*split, *layer(f"{theirs}.proj", f"{ours}.to_out")]
        if ours.endswith("mlp"):
            return [
                *layer(f"{theirs}.fc1", f"{ours}.expand"),
                *layer(f"{theirs}.fc2", f"{ours}.contract"),
            ]
        if ours.endswith("projection"):  # without bias here
            return [rule(f"{theirs}.weight", f"{ours}.weight")]
        return layer(theirs, ours)

    def refusal(self, config: ModelConfig) -> str | None:
        """Refuse all models but TNT as it was published."""
        if not isinstance(config, TNTConfig):
            return "TNT's files hold only TNT"
        if config.patch_size[0] != config.patch_size[1] or config.word_stride != WORD_STRIDE:
            return "TNT's files hold only square patches with a word every 4 pixels"
        return None

    def left_out(self, name: str) -> str | None:
        """Expect only weights in these files."""
        return None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the authors' rule: pixels from -1 to 1, a centre crop of nine tenths."""
        half = (0.5,) * config.channels
        return centre_cropped(config, mean=half, std=half, crop_fraction=DEFAULT_CROP)


def recognise(index: Index) -> TNTLayout | None:
    """Recognise TNT by the positions of its words."""
    if "inner_pos" in index and "outer_pos" in index:
        return TNTLayout(origin="official")
    if "pixel_pos" in index and "patch_pos" in index:
        return TNTLayout(origin="timm")
    return None
