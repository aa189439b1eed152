"""The interface of every layout, and the shared arithmetic that reads a config from shapes."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vitrine.checkpoints.layouts.rules import Rule
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, TryOption
from vitrine.models import AxialResNetConfig, BiTConfig, ModelConfig, ViTConfig
from vitrine.models.families import family_of
from vitrine.models.stem_configs import HMlpStemConfig, ResNetStemConfig

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HEAD_WIDTH = 64
# Published models whose heads are not 64 wide, by width: so400m, H, g, G.
HEADS_BY_WIDTH = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
DEFAULT_IMAGE_SIZE = 224
PYRAMID_HEADS = (1, 2, 5, 8)


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Information besides names and shapes: the user's values first, then the files beside the weights."""

    path: Path
    image_size: tuple[int, int] | None = None
    """The size that the positions were made for, where a file says it."""
    asked_size: tuple[int, int] | None = None
    """The size that the user requests; it determines the grid only if nothing else does."""
    num_heads: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """The user's values for fields of the config; they replace what a layout reads or assumes."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The config.json beside the weights, Hugging Face's or timm's."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The metadata inside the weights file."""


@dataclass(frozen=True)
class Configured:
    """A config read from a file, and the assumptions made."""

    config: ModelConfig
    notes: tuple[str, ...] = ()


class Layout(Protocol):
    """Names, shapes and numerics of one way to store weights."""

    @property
    def name(self) -> str:
        """The layout's name in reports."""

    def wants_slots(self, config: ModelConfig) -> bool | None:
        """Whether class and distillation token have their own positions; None if both are possible."""

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the model's config from names and shapes."""

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor of a model's file."""

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why the layout cannot hold a model, and a target that can; None if it can."""

    def left_out(self, name: str) -> str | None:
        """Return why a tensor of the file is not part of the model; None if it should be."""

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the default preprocessing of such files."""


def vit_config(
    index: Index,
    hints: Hints,
    *,
    patch_kernel: tuple[int, ...],
    table: str | None,
    depth: int,
    num_slots: int,
    num_heads: int | None,
    grid: tuple[int, int] | None = None,
    **options: Any,
) -> Configured:
    """Build a config from names and shapes.

    `patch_kernel` is (width, channels, rows, columns), `table` the name of the positions, `num_slots` how many
    rows it has before those of the patches, `grid` the grid of positions that are no such table. Without `num_heads`
    in the file or the hints it is assumed, with a note.
    """
    notes = []
    width, channels, rows, columns = patch_kernel
    if num_heads is None:
        num_heads = hints.num_heads
    if num_heads is None:
        num_heads = assumed_heads(width, path=hints.path)
        notes.append(f"the file does not contain the number of heads; {num_heads} assumed for width {width}")
    stem = options.get("stem")
    stride = stem.stride if stem else 1
    token_stride = rows * stride, columns * stride
    if grid is not None:
        image_size = grid[0] * token_stride[0], grid[1] * token_stride[1]
    elif table is not None:
        shape = index[table].shape
        if len(shape) < 2:
            raise CheckpointError(f"{hints.path} holds {table} as {shape}, expected (1, tokens, {width})")
        grid = grid_of(shape[-2] - num_slots, token_stride, table=table, hints=hints)
        image_size = grid[0] * token_stride[0], grid[1] * token_stride[1]
    else:
        image_size = hints.image_size or hints.asked_size or nearest_size(token_stride)
        notes.append(f"the file does not contain the image size; {image_size[0]}x{image_size[1]} assumed")
    if depth < 1:
        raise CheckpointError(f"{hints.path} holds no encoder block; its first tensor is {min(index)}")
    if options.get("has_class_token") == (options.get("pooling", "class_token") == "class_token"):
        del options["has_class_token"]  # the config's default: a class token exactly if pooling reads it
    config = ViTConfig(
        image_size=image_size,
        patch_size=(rows, columns),
        channels=options.pop("channels", channels),
        width=width,
        depth=depth,
        num_heads=num_heads,
        **options,
    )
    return Configured(config, tuple(notes))


def stage_heads(widths: tuple[int, ...], *, hints: Hints, notes: list[str]) -> tuple[int, ...]:
    """Return the number of heads of every stage of a pyramid: the user's, or 1, 2, 5, 8 as in every published one."""
    if "num_heads" in hints.options:
        return tuple(hints.options["num_heads"])
    heads = PYRAMID_HEADS[: len(widths)]
    if len(heads) < len(widths) or any(width % count for width, count in zip(widths, heads, strict=True)):
        raise CheckpointError(
            f"{hints.path} does not contain the numbers of attention heads, and its widths "
            f"{', '.join(map(str, widths))} do not fit {', '.join(map(str, PYRAMID_HEADS))}",
            advice=[TryOption("options", "to set num_heads, one for each stage")],
        )
    notes.append(f"the file does not contain the numbers of heads; {', '.join(map(str, heads))} assumed")
    return heads


def assumed_heads(width: int, *, path: Path) -> int:
    """Return the number of heads that published models of this width have."""
    if width in HEADS_BY_WIDTH:
        return HEADS_BY_WIDTH[width]
    if width % HEAD_WIDTH:
        raise CheckpointError(
            f"{path} does not contain the number of attention heads, and its width {width} is not a multiple of "
            f"{HEAD_WIDTH}",
            advice=[TryOption("num_heads", "to set it")],
        )
    return width // HEAD_WIDTH


def grid_of(patches: int, stride: tuple[int, int], *, table: str, hints: Hints) -> tuple[int, int]:
    """Return the grid (rows, columns) of a position table: the hinted size's, or a square."""
    side = math.isqrt(max(patches, 0))
    for size in (hints.image_size, (side * stride[0], side * stride[1]), hints.asked_size):
        if size is not None:
            grid = size[0] // stride[0], size[1] // stride[1]
            if grid[0] * grid[1] == patches > 0:
                return grid
    raise CheckpointError(
        f"{hints.path} holds {table} for {patches} patches, which is not a square grid; "
        "give the image size that it was made for"
    )


def nearest_size(stride: tuple[int, int]) -> tuple[int, int]:
    """Return the usual image size, or the nearest below it that patches can tile."""
    height, width = (max(DEFAULT_IMAGE_SIZE // step, 1) * step for step in stride)
    return height, width


def count(index: Iterable[str], pattern: str) -> int:
    """Count the different numbers that the pattern's group takes among the names: layers, units."""
    expression = re.compile(pattern)
    return len({match[1] for name in index if (match := expression.match(name))})


def shape_of(index: Index, name: str, *, hints: Hints, axes: int) -> tuple[int, ...]:
    """Return the shape of a tensor that a config is read from; refuse a file that lacks it."""
    if name not in index:
        raise CheckpointError(f"{hints.path} does not contain the tensor {name}")
    shape = index[name].shape
    if len(shape) != axes:
        raise CheckpointError(
            f"{hints.path} holds {name} as {shape}, expected {axes} axes; the file is not a ViT, or it is damaged"
        )
    return shape


def refuse_odd_vit(
    config: ModelConfig,
    *,
    where: str,
    instead: str,
    poolings: Iterable[str] = ("class_token",),
    positions: tuple[str, ...] = (),
    rotary: tuple[str, ...] = ("none",),
    **allowed: bool,
) -> str | None:
    """Return the parts of a ViT that a layout cannot hold: all that a classic ViT lacks, except `allowed`."""
    if isinstance(config, BiTConfig):
        return f"{where} cannot hold BiT ResNets; the layouts npz and timm can"
    if isinstance(config, AxialResNetConfig):
        return f"{where} cannot hold an AxialResNet; the layout vitrine can"
    if not isinstance(config, ViTConfig):
        return f"{where} cannot hold a {family_of(config).kind}; the layouts official and timm can"
    kinds = positions or (("learned_1d", "sincos_2d") if allowed.get("fixed_positions") else ("learned_1d",))
    one_table = config.positions in kinds
    one_table = one_table and (config.position_placement == "stem" or config.positions == "relative_bias")
    is_gelu = config.activation == "gelu"
    wants = {
        f"{config.pooling} pooling": config.pooling not in poolings,
        "a class token that pooling does not read": config.pooling != "class_token"
        and config.reads_class_token
        and not allowed.get("idle_class_token"),
        "average pooling with the norm after it": config.norm_after_pooling
        and not allowed.get("norm_after_pooling"),
        "a ResNet stem": isinstance(config.stem, ResNetStemConfig) and not allowed.get("stem"),
        "a ResNet stem with a 3x3 root": isinstance(config.stem, ResNetStemConfig)
        and config.stem.root != "7x7",
        "a stem other than a ResNet": config.stem is not None
        and not isinstance(config.stem, ResNetStemConfig)
        and not (isinstance(config.stem, HMlpStemConfig) and allowed.get("hmlp")),
        f"{config.attention} attention": config.attention != "global",
        "parallel branches in a block": config.num_branches > 1 and not allowed.get("branches"),
        "an attention scale of its own": config.attention_scale is not None,
        "positions that keep the aspect ratio": config.positions_keep_aspect
        and not allowed.get("keeps_aspect"),
        "attention pooling that skips leading tokens": config.pooling == "attention"
        and bool(config.num_leading_tokens)
        and not config.pools_leading_tokens
        and not allowed.get("pools_patches"),
        f"the activation {config.activation}": config.activation != "gelu" and not allowed.get("activations"),
        "RMSNorm": config.norm != "layer_norm" and not allowed.get("rms_norm"),
        "a representation layer before the head": config.representation_width is not None
        and config.representation_layer == "tanh"
        and not allowed.get("representation"),
        f"{config.positions} positions at {config.position_placement}": not one_table,
        f"rotary positions of {config.rotary}": config.rotary != "none" and config.rotary not in rotary,
        "no rotary positions": config.rotary == "none" and config.rotary not in rotary,
        "SwiGLU": config.mlp == "swiglu" and not allowed.get("swiglu"),
        "a norm of the mixed values of all heads": config.attention_norm
        and not allowed.get("attention_norm"),
        "a norm inside the MLP": config.mlp_norm and not allowed.get("mlp_norm"),
        "keys without a bias beside queries and values with one": config.qkv_bias
        and not config.key_bias
        and not allowed.get("no_key_bias"),
        "patches without a bias": not config.patch_bias and not allowed.get("no_patch_bias"),
        "a norm of the embedding": config.embedding_norm and not allowed.get("embedding_norm"),
        "a projection to a space shared with text": config.representation_width is not None
        and config.representation_layer == "projection"
        and not allowed.get("projection"),
        "a projection with a bias": config.representation_width is not None
        and config.projection_bias
        and not allowed.get("projection_bias"),
        "a representation of unit length": config.unit_length,
        "registers": config.num_registers > 0 and not allowed.get("registers"),
        "a distillation token": config.has_distillation_token and not allowed.get("distillation"),
        "LayerScale": config.layer_scale is not None and not allowed.get("layer_scale"),
        "norms of queries and keys": config.qk_norm and not allowed.get("qk_norm"),
        "queries, keys and values without bias": not config.qkv_bias and not allowed.get("no_qkv_bias"),
        "the tanh form of GELU": is_gelu and config.gelu == "tanh" and allowed.get("only_erf", False),
        "the erf form of GELU": is_gelu and config.gelu == "erf" and allowed.get("only_tanh", False),
        "patches or images that are not square": not is_square(config) and allowed.get("only_square", False),
    }
    for what, is_wanted in wants.items():
        if is_wanted:
            return f"{where} cannot hold {what}; {instead}"
    return None


def is_square(config: ViTConfig) -> bool:
    """Return whether both patches and image are square."""
    return len(set(config.patch_size)) == 1 and len(set(config.image_size)) == 1
