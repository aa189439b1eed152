"""Feed images to a model in chunks small enough to bound the memory of its attention matrices."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError, DataError
from vitrine.models import BiT, Model, ViT, ViTConfig
from vitrine.models.families import family_of

Images: TypeAlias = Tensor | Iterable[Tensor]
"""Normalised images (B, C, height, width), or any number of such batches."""

# Bytes of one layer's attention matrix; together with its logits the peak is twice that, for any model.
ATTENTION_BYTES = 2**26
MOST_AT_ONCE = 16


def require_attention(model: Model) -> ViT:
    """Return the model if it has attention; raise an error otherwise."""
    if isinstance(model, BiT):
        raise ConfigError("a BiT ResNet has no attention; use a ViT or a hybrid")
    if not isinstance(model, ViT):
        raise ConfigError(
            f"figures of attention need one sequence of tokens through all layers, which a "
            f"{family_of(model.config).kind} does not have; use a ViT or a hybrid"
        )
    return model


def num_at_once(model: Model, image_size: tuple[int, int]) -> int:
    """Return the number of images of a size per chunk."""
    if not isinstance(model.config, ViTConfig):
        return MOST_AT_ONCE
    config = model.config
    rows, columns = (side // step for side, step in zip(image_size, config.token_stride, strict=True))
    tokens = rows * columns + config.num_prefix_tokens + config.num_registers
    a_matrix = config.num_branches * config.num_heads * tokens**2 * 4
    return int(max(1, min(MOST_AT_ONCE, ATTENTION_BYTES // a_matrix)))


def pieces(model: Model, images: Images) -> Iterator[Tensor]:
    """Split images into chunks for the model, on its device and in its precision."""
    weight = next(model.parameters())
    for batch in [images] if isinstance(images, Tensor) else images:
        if batch.ndim != 4:
            raise ConfigError(f"images must be (batch, channels, height, width), got {tuple(batch.shape)}")
        for piece in batch.split(num_at_once(model, (batch.shape[2], batch.shape[3]))):
            if len(piece):
                yield piece.to(weight.device, weight.dtype)


def num_pieces(model: Model, images: Images) -> int | None:
    """Count the chunks, if the number is known beforehand."""
    if not isinstance(images, Tensor):
        return len(images) if isinstance(images, Sized) else None
    return -(-len(images) // num_at_once(model, (images.shape[-2], images.shape[-1])))


def grid_of(model: ViT, images: Tensor) -> tuple[int, int]:
    """Return the patches (down, across) of a batch of images."""
    down, across = model.config.token_stride
    return images.shape[2] // down, images.shape[3] // across


def on_grid(flat: Tensor, grid: tuple[int, int]) -> Tensor:
    """Reshape patches in raster order (..., N) to their grid: (..., GH, GW)."""
    return flat.reshape(*flat.shape[:-1], *grid)


def concatenated(parts: list[Tensor]) -> NDArray[Any]:
    """Concatenate the results of all chunks into one array on the CPU; refuse an empty list."""
    if not parts:
        raise DataError("no images given; pass at least one")
    return torch.cat(parts).cpu().numpy()
