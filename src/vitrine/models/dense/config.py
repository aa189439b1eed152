"""The configs of dense models: the shape of the ViT and of its decoder."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vitrine.errors import ConfigError
from vitrine.models.choices import NO_TABLE
from vitrine.models.config import ViTConfig, checked_layer
from vitrine.models.config_checks import require_classes, require_heads, require_positive
from vitrine.models.sizes import shown

HEAD_WIDTH = 64
# Allowed numbers of cells per patch side in a level of a pyramid.
LEVELS = (4.0, 2.0, 1.0, 0.5, 0.25, 0.125)


@dataclass(frozen=True, kw_only=True)
class DenseConfig:
    """A plain ViT without its head, and the number of classes; its families add their decoder."""

    answers: ClassVar[Literal["masks", "boxes", "instances"]] = "masks"
    """The output of the model: a class per pixel, boxes of objects, or masks of objects."""
    has_duplicates: ClassVar[bool] = False
    """Whether several boxes may be predicted for one object, of which the best must be selected."""

    vit: ViTConfig
    num_classes: int = 21

    def __post_init__(self) -> None:
        if isinstance(self.vit, Mapping):  # from a record
            object.__setattr__(self, "vit", vit_from_json(self.vit))
        require_plain(self.vit)
        require_classes(self.num_classes)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the windows that a picture is cut into."""
        return self.vit.image_size

    @property
    def channels(self) -> int:
        """Channels of the images."""
        return self.vit.channels

    @property
    def activation_checkpointing(self) -> bool:
        """Whether blocks of the ViT are recomputed in the backward pass."""
        return self.vit.activation_checkpointing

    @property
    def representation_width(self) -> int:
        """Width of the tokens."""
        return self.vit.width


@dataclass(frozen=True, kw_only=True)
class LinearSegmenterConfig(DenseConfig):
    """A linear layer on the tokens of one or several blocks, behind a batch norm (as DINOv2 and v3 are evaluated)."""

    layers: tuple[int, ...] = (-1,)
    """Blocks whose tokens are concatenated; negative from the end."""
    dropout: float = 0.1
    """Dropout of whole channels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layers:
            raise ConfigError("layers must name at least one block, such as -1", option="layers")
        numbers = [checked_layer(layer, self.vit.depth) for layer in self.layers]
        if len(set(numbers)) < len(numbers):
            raise ConfigError(f"layers must be different blocks, got {self.layers}", option="layers")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and below 1, got {self.dropout}")


@dataclass(frozen=True, kw_only=True)
class SegmenterConfig(DenseConfig):
    """Segmenter's mask transformer: class embeddings beside the patches in additional blocks (arXiv:2105.05633)."""

    width: int | None = None
    """Width of the decoder; None is the ViT's."""
    depth: int = 2
    mlp_width: int | None = None
    """None is four times the width."""
    dropout: float = 0.1
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("depth", self.depth)
        require_heads(self.decoder_width, self.num_heads)

    @property
    def decoder_width(self) -> int:
        """Width of the decoder's tokens."""
        return self.width or self.vit.width

    @property
    def num_heads(self) -> int:
        """Attention heads of the decoder, of 64 channels each."""
        return max(self.decoder_width // HEAD_WIDTH, 1)


@dataclass(frozen=True, kw_only=True)
class EoMTConfig(DenseConfig):
    """Queries in the last blocks of the ViT, each of which predicts a mask and a class (arXiv:2503.19108)."""

    num_queries: int = 100
    num_blocks: int = 3
    """Blocks that the queries pass: 3 for S and B, 4 for L, 5 for g."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("num_queries", self.num_queries)
        if not 1 <= self.num_blocks <= self.vit.depth:
            raise ConfigError(
                f"num_blocks must be from 1 to {self.vit.depth}, the depth of the ViT, got {self.num_blocks}"
            )
        if self.vit.positions in NO_TABLE or self.vit.position_placement != "stem":
            raise ConfigError(
                "the queries of EoMT need a ViT with positions before its first block; use the recipe masks or "
                "segmenter"
            )

    @property
    def num_upscales(self) -> int:
        """How often the map of patches is doubled: to about 4 pixels per cell."""
        return max(round(math.log2(self.vit.patch_size[0])) - 2, 1)


@dataclass(frozen=True, kw_only=True)
class InstanceEoMTConfig(EoMTConfig):
    """The same queries for objects: each predicts the mask of one object and its class."""

    answers: ClassVar[Literal["masks", "boxes", "instances"]] = "instances"

    num_classes: int = 20


@dataclass(frozen=True, kw_only=True)
class DetectorConfig(DenseConfig):
    """A dense detector without anchors on a simple feature pyramid (arXiv:2203.16527, 2108.07755)."""

    answers: ClassVar[Literal["masks", "boxes", "instances"]] = "boxes"
    has_duplicates: ClassVar[bool] = True

    num_classes: int = 20
    width: int = 192
    """Channels of the pyramid and of the heads."""
    levels: tuple[float, ...] = (2.0, 1.0, 0.5, 0.25)
    """Cells per patch and side in each level of the pyramid: powers of two from 4 to 1/8."""
    num_convs: int = 2
    """Convolutions in front of classes and of boxes, shared by all levels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("width", self.width)
        require_positive("num_convs", self.num_convs)
        if not self.levels or any(level not in LEVELS for level in self.levels):
            raise ConfigError(f"levels must be some of {LEVELS}, got {self.levels}", option="levels")
        if list(self.levels) != sorted(set(self.levels), reverse=True):
            raise ConfigError(
                f"levels must be different, the finest first, got {self.levels}", option="levels"
            )


@dataclass(frozen=True, kw_only=True)
class YolosConfig(DenseConfig):
    """Detection tokens beside the patches of a ViT, each of which predicts one box (arXiv:2106.00666)."""

    answers: ClassVar[Literal["masks", "boxes", "instances"]] = "boxes"

    num_classes: int = 20
    num_detections: int = 100
    has_middle_positions: bool = False
    """Whether positions are also added after every block but the last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("num_detections", self.num_detections)
        if self.vit.positions != "learned_1d" or self.vit.position_placement != "stem":
            raise ConfigError(
                "YOLOS needs a ViT with a learned table of positions before its first block; use the recipe boxes"
            )


def require_plain(config: ViTConfig) -> None:
    """Refuse a ViT whose tokens are not those of plain patches."""
    if config.stem is not None or config.num_branches > 1 or config.attention != "global":
        raise ConfigError(
            "a dense model needs a plain ViT with global attention, without a stem and with one branch per block: "
            "ViT, DeiT, DINO or DINOv2 weights"
        )


def as_encoder(config: ViTConfig, *, image_size: tuple[int, int] | None = None) -> ViTConfig:
    """Return the config of a ViT as an encoder: without head and pooling, for windows of a size."""
    changes: dict[str, Any] = {"num_classes": None, "representation_width": None, "norm_after_pooling": False}
    if not config.has_distillation_token:
        changes |= {"pooling": "average", "has_class_token": config.reads_class_token}
    if image_size is not None:
        changes["image_size"] = image_size
    return dataclasses.replace(config, **changes)


def vit_from_json(values: Mapping[str, Any]) -> ViTConfig:
    """Build the config of a ViT from plain values."""
    known = {field.name for field in dataclasses.fields(ViTConfig)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"a ViT has no option {unknown[0]!r}")
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return ViTConfig(**options)


def require_window(config: DenseConfig, size: tuple[int, int]) -> None:
    """Refuse windows that the ViT's patches cannot tile."""
    stride = config.vit.token_stride
    if any(side % step for side, step in zip(size, stride, strict=True)):
        raise ConfigError(
            f"windows must be a multiple of the patch stride {shown(stride)}, got {shown(size)}",
            option="size",
        )
