"""Files of PVT, PVT v2 and PCPVT: those of the official code, and timm's of PVT v2 and of Twins-PCPVT.

The official names count stages from 1 (`block2.0.attn.q`). timm renames those of PVT v2 and keeps those of PCPVT: the
official code names them as timm's Twins does.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from vitrine.checkpoints.layouts.layout import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Configured,
    Hints,
    count,
    nearest_size,
    shape_of,
    stage_heads,
)
from vitrine.checkpoints.layouts.preprocessing import centre_cropped
from vitrine.checkpoints.layouts.rules import Rule, layer, rule
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import ModelConfig, PCPVTConfig, PVTConfig, PVTv2Config
from vitrine.models.pyramid_config import PyramidConfig

Kind = Literal["PVT", "PVT v2", "timm PVT v2", "PCPVT"]
CONFIGS: dict[Kind, type[PyramidConfig]] = {
    "PVT": PVTConfig,
    "PVT v2": PVTv2Config,
    "timm PVT v2": PVTv2Config,
    "PCPVT": PCPVTConfig,
}
NUM_STAGES = 4
DEFAULT_REDUCTIONS = (8, 4, 2, 1)
STRIDE = 32
CROP_FRACTION = 0.875  # 224 of 256 pixels; timm evaluates PVT v2 and Twins with 0.9

# Names inside a block: ours, theirs.
INSIDE = (
    ("norm_1", "norm1"),
    ("attention.to_q", "attn.q"),
    ("attention.to_kv", "attn.kv"),
    ("attention.to_out", "attn.proj"),
    ("norm_2", "norm2"),
    ("mlp.expand", "mlp.fc1"),
    ("mlp.contract", "mlp.fc2"),
)
REDUCTION = (("attention.reduction", "attn.sr"), ("attention.reduction_norm", "attn.norm"))


@dataclass(frozen=True, kw_only=True)
class PyramidLayout:
    """One family's files."""

    kind: Kind

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        return self.kind

    def wants_slots(self, config: ModelConfig) -> None:
        """The position of PVT's class token cannot be removed, and the other families have none."""
        return

    def embedding(self, stage: int) -> str:
        """Name the patch embedding of a stage, counted from 0."""
        if self.kind == "PCPVT":
            return f"patch_embeds.{stage}"
        if self.kind == "timm PVT v2":
            return f"stages.{stage}.downsample" if stage else "patch_embed"
        return f"patch_embed{stage + 1}"

    def block(self, stage: int, number: int | str) -> str:
        """Name a block, or a pattern for all of them."""
        if self.kind == "PCPVT":
            return f"blocks.{stage}.{number}"
        if self.kind == "timm PVT v2":
            return f"stages.{stage}.blocks.{number}"
        return f"block{stage + 1}.{number}"

    def norm(self, stage: int) -> str | None:
        """Name the norm at the end of a stage, where the family has one."""
        if self.kind == "timm PVT v2":
            return f"stages.{stage}.norm"
        return f"norm{stage + 1}" if self.kind == "PVT v2" else None

    @property
    def mixing(self) -> str:
        """Name the depth-wise convolution in the MLP."""
        return "mlp.dwconv" if self.kind == "timm PVT v2" else "mlp.dwconv.dwconv"

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; the file does not contain numbers of heads and, without a table, the image size."""
        notes: list[str] = []
        kernels = [
            shape_of(index, f"{self.embedding(stage)}.proj.weight", hints=hints, axes=4)
            for stage in range(NUM_STAGES)
        ]
        widths = tuple(kernel[0] for kernel in kernels)
        hidden = [
            shape_of(index, f"{self.block(stage, 0)}.mlp.fc1.weight", hints=hints, axes=2)[0]
            for stage in range(NUM_STAGES)
        ]
        head = index.get("head.bias")
        options: dict[str, Any] = {
            "channels": kernels[0][1],
            "widths": widths,
            "depths": tuple(
                count(index, re.escape(self.block(stage, "N")).replace("N", r"(\d+)") + r"\.")
                for stage in range(NUM_STAGES)
            ),
            "num_heads": stage_heads(widths, hints=hints, notes=notes),
            "mlp_ratios": tuple(rows // width for rows, width in zip(hidden, widths, strict=True)),
            "reductions": tuple(self.reduction(index, stage) for stage in range(NUM_STAGES)),
            "num_classes": head.shape[0] if head else None,
            "qkv_bias": f"{self.block(0, 0)}.attn.q.bias" in index,
        }
        # A convolution of one cell in the last stage, where nothing is left to reduce, belongs to linear attention.
        if f"{self.block(NUM_STAGES - 1, 0)}.attn.sr.weight" in index and "PVT v2" in self.kind:
            options |= {"has_linear_attention": True, "reductions": DEFAULT_REDUCTIONS}
        options["image_size"] = self.image_size(index, hints, notes)
        return Configured(CONFIGS[self.kind](**options), tuple(notes))

    def reduction(self, index: Index, stage: int) -> int:
        """Read how many cells per side become one key: the kernel of the convolution that reduces them."""
        kernel = index.get(f"{self.block(stage, 0)}.attn.sr.weight")
        return kernel.shape[-1] if kernel is not None else 1

    def image_size(self, index: Index, hints: Hints, notes: list[str]) -> tuple[int, int]:
        """Read the image size from PVT's position tables; the others take any, so it is asked for or assumed."""
        if self.kind == "PVT":
            rows = shape_of(index, f"pos_embed{NUM_STAGES}", hints=hints, axes=3)[1] - 1
            side = math.isqrt(max(rows, 0))
            for size in (hints.image_size, (side * STRIDE, side * STRIDE), hints.asked_size):
                if size is not None and (size[0] // STRIDE) * (size[1] // STRIDE) == rows > 0:
                    return size
            raise CheckpointError(
                f"{hints.path} holds positions for {rows} patches, which is not a square grid; "
                "give the image size that it was made for"
            )
        size = hints.image_size or hints.asked_size or nearest_size((STRIDE, STRIDE))
        notes.append(f"the file does not contain the image size; {size[0]}x{size[1]} assumed")
        return size

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, PyramidConfig)
        declared: list[Rule] = []
        is_linear = isinstance(config, PVTv2Config) and config.has_linear_attention
        for stage, depth in enumerate(config.depths):
            ours = f"stages.{stage}"
            declared += layer(f"{self.embedding(stage)}.proj", f"{ours}.embedding.projection")
            declared += layer(f"{self.embedding(stage)}.norm", f"{ours}.embedding.norm")
            if self.kind == "PVT":
                declared.append(rule(f"pos_embed{stage + 1}", f"{ours}.positions.table"))
            if self.kind == "PCPVT":
                declared += layer(f"pos_block.{stage}.proj.0", f"{ours}.positions.mix")
            inside = [*INSIDE, *(REDUCTION if is_linear or config.reductions[stage] > 1 else ())]
            if isinstance(config, PVTv2Config):
                inside.append(("mlp.mix", self.mixing))
            for number in range(depth):
                for mine, theirs in inside:
                    pair = layer(f"{self.block(stage, number)}.{theirs}", f"{ours}.blocks.{number}.{mine}")
                    has_bias = config.qkv_bias or mine not in ("attention.to_q", "attention.to_kv")
                    declared += pair if has_bias else pair[:1]
            norm = self.norm(stage)
            if norm is not None:
                declared += layer(norm, f"{ours}.norm")
        if self.kind == "PVT":
            declared.append(rule("cls_token", "class_token"))
        if self.kind in ("PVT", "PCPVT"):
            declared += layer("norm", "norm")
        return [*declared, *(layer("head", "head") if config.num_classes else ())]

    def refusal(self, config: ModelConfig) -> str | None:
        """Refuse all models but those of one family with four stages."""
        if type(config) is not CONFIGS[self.kind]:
            return f"the layout {self.kind} holds only {self.kind.removeprefix('timm ')} models; vitrine holds any"
        assert isinstance(config, PyramidConfig)
        if len(config.widths) != NUM_STAGES:
            return f"{self.kind} files have {NUM_STAGES} stages, got {len(config.widths)}; vitrine holds any"
        return None

    def left_out(self, name: str) -> str | None:
        """Expect only weights in these files."""
        return None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the papers' evaluation: shorter side 256 for 224 pixels, a centre crop, ImageNet's statistics."""
        return centre_cropped(config, mean=IMAGENET_MEAN, std=IMAGENET_STD, crop_fraction=CROP_FRACTION)


def recognise(index: Index) -> PyramidLayout | None:
    """Recognise a pyramid by its separate queries, and its family by what only that has."""
    if "patch_embeds.0.proj.weight" in index and "pos_block.0.proj.0.weight" in index:
        # Twins-SVT has the same embeddings and groups its attention: blocks with one fused layer.
        return PyramidLayout(kind="PCPVT") if "blocks.0.0.attn.q.weight" in index else None
    if "patch_embed1.proj.weight" in index and "block1.0.attn.q.weight" in index:
        return PyramidLayout(kind="PVT" if "pos_embed1" in index else "PVT v2")
    if "stages.1.downsample.proj.weight" in index and "stages.0.blocks.0.attn.q.weight" in index:
        return PyramidLayout(kind="timm PVT v2")
    return None


def official_layout(config: PyramidConfig) -> PyramidLayout:
    """Return the layout of the authors' files of a model."""
    kinds: dict[type[PyramidConfig], Kind] = {PVTConfig: "PVT", PVTv2Config: "PVT v2", PCPVTConfig: "PCPVT"}
    return PyramidLayout(kind=kinds[type(config)])


def timm_layout(config: PyramidConfig) -> PyramidLayout:
    """Return timm's layout of a model; it refuses PVT v1, which timm does not have."""
    return PyramidLayout(kind="timm PVT v2" if isinstance(config, PVTv2Config) else "PCPVT")
