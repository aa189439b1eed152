"""Several pictures in one sequence, with attention that stays inside each (NaViT, arXiv:2307.06304).

On CUDA one kernel computes all of them (FlexAttention) and skips blocks of tokens of different pictures; elsewhere
each picture is computed by itself. Both are exact, and neither computes padding.

Shapes: B pictures of T_1, ..., T_B tokens, T tokens in all, H heads of K channels.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrine.errors import ConfigError
from vitrine.models.rotary import Rotation

BLOCK = 128  # tokens per side of a block; FlexAttention's own default
LEAST_HEAD_WIDTH = 16  # of FlexAttention
LEAST_CAPABILITY = (7, 0)  # of the compiler that it needs


class Path(NamedTuple):
    """How attention inside pictures is computed."""

    is_flex: bool
    """By FlexAttention, for all pictures at once; otherwise picture by picture."""
    reason: str = ""
    """Why FlexAttention cannot be used, where it could be expected."""

    def __str__(self) -> str:
        if self.is_flex:
            return "FlexAttention over packed images"
        return f"attention image by image{f' ({self.reason})' if self.reason else ''}"


@functools.cache
def path_on(device: str, *, head_width: int) -> Path:
    """Return how attention inside pictures is computed on a device for heads of this width."""
    if not device.startswith("cuda"):
        return Path(False)
    if head_width < LEAST_HEAD_WIDTH:
        return Path(
            False, f"FlexAttention needs heads of at least {LEAST_HEAD_WIDTH} channels, not {head_width}"
        )
    if importlib.util.find_spec("triton") is None:
        return Path(False, "FlexAttention needs Triton, which is not installed")
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return Path(False, f"{torch.cuda.get_device_name(device)} is too old for FlexAttention")
    # Uncompiled, FlexAttention would compute the products of all T x T tokens.
    if importlib.import_module("torch._dynamo.config").disable:
        return Path(False, "torch.compile is switched off, which FlexAttention needs")
    return Path(True)


class Segments:
    """Where each picture of a sequence is, and how attention rotates its queries and keys."""

    def __init__(self, lengths: list[int], *, device: torch.device, rotation: Rotation | None = None) -> None:
        self.lengths, self.rotation = lengths, rotation
        counts = torch.tensor(lengths)
        # Made on the CPU: counting on the device would wait for it.
        numbers = torch.repeat_interleave(torch.arange(len(lengths)), counts)
        self.picture = numbers.to(device, non_blocking=True)
        """Number of the picture that each token belongs to: (T,)."""
        self.starts = (counts.cumsum(0) - counts).to(device, non_blocking=True)
        """Place of the first token of each picture: (B,)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """Mix v (1, H, T, K) inside each picture."""
        if path_on(str(q.device), head_width=q.shape[-1]).is_flex:
            return self.attend_at_once(q, k, v, scale=scale)
        return self.attend_one_by_one(q, k, v, scale=scale)

    def attend_at_once(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """Mix v (1, H, T, K) by FlexAttention."""
        # Norms of queries and keys return fp32 under autocast, which FlexAttention does not know.
        try:
            mixed: Tensor = flex()(q.to(v.dtype), k.to(v.dtype), v, block_mask=self.mask, scale=scale)
        except importlib.import_module("torch._dynamo.exc").TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"FlexAttention cannot be compiled for {torch.cuda.get_device_name(q.device)} ({reason}); give "
                "images one size",
                option="max_patches",
            ) from error
        return mixed

    def attend_one_by_one(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """Mix v (1, H, T, K) picture by picture."""
        parts = (torch.split(part, self.lengths, dim=2) for part in (q, k, v))
        mixed = [
            F.scaled_dot_product_attention(own_q, own_k, own_v, scale=scale)
            for own_q, own_k, own_v in zip(*parts, strict=True)
        ]
        return torch.cat(mixed, dim=2)

    @functools.cached_property
    def mask(self) -> Any:
        """The blocks of queries and keys that attention computes, as FlexAttention reads them."""
        picture = self.picture

        def is_same(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return picture[query] == picture[key]

        partial, whole = blocks_of(self.lengths)
        count = sum(self.lengths)
        module = importlib.import_module("torch.nn.attention.flex_attention")
        mask = module.BlockMask.from_kv_blocks(
            *listed(partial), *listed(whole), BLOCK_SIZE=BLOCK, mask_mod=is_same, seq_lengths=(count, count)
        )
        return mask.to(self.picture.device)

    def first(self, tokens: Tensor, count: int) -> Tensor:
        """Return the first tokens of each picture from a sequence (1, T, D): (B, count, D)."""
        places = self.starts[:, None] + torch.arange(count, device=tokens.device)
        return tokens[0][places]

    def of_one_length(self, tokens: Tensor) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the pictures of each length: their numbers, and their tokens (n, length, D) from (1, T, D)."""
        own = torch.split(tokens[0], self.lengths)
        for length in dict.fromkeys(self.lengths):
            numbers = [number for number, other in enumerate(self.lengths) if other == length]
            yield numbers, torch.stack([own[number] for number in numbers])


def blocks_of(lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Return which blocks of queries (rows) and keys are computed with a mask, and which as a whole: (N, N) each.

    They come from the lengths alone: the T x T matrix is never made.
    """
    picture = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    starts = torch.arange(0, len(picture), BLOCK)
    first, last = picture[starts], picture[(starts + BLOCK - 1).clamp(max=len(picture) - 1)]
    shares_a_picture = (first[:, None] <= last) & (first <= last[:, None])
    is_inside_one = (first == last) & (starts + BLOCK <= len(picture))
    whole = is_inside_one[:, None] & is_inside_one & (first[:, None] == first)
    return shares_a_picture & ~whole, whole


def listed(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks each row has, (1, 1, N), and their numbers before all others, (1, 1, N, N)."""
    counts = wanted.sum(dim=-1).to(torch.int32)
    numbers = wanted.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[None, None], numbers[None, None]


@functools.cache
def flex() -> Callable[..., Any]:
    """Return FlexAttention as one kernel for sequences of any length.

    `fullgraph`: where the compiler gives up, it raises an error in place of running FlexAttention uncompiled.
    """
    # Only where it is used: the import takes longer than a small model on a CPU.
    module = importlib.import_module("torch.nn.attention.flex_attention")
    return torch.compile(module.flex_attention, dynamic=True, fullgraph=True)
