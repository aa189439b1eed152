"""Several pictures in one sequence, with attention that stays inside each (NaViT, arXiv:2307.06304).

Shapes: B pictures of T_1, ..., T_B tokens, T tokens in all, H heads of K channels.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrine.models.rotary import Rotation


class Segments:
    """Where each picture of a sequence is, and how attention rotates its queries and keys."""

    def __init__(self, lengths: list[int], *, device: torch.device, rotation: Rotation | None = None) -> None:
        self.lengths, self.rotation = lengths, rotation
        counts = torch.tensor(lengths, device=device)
        self.picture = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts)
        """Number of the picture that each token belongs to: (T,)."""
        self.starts = counts.cumsum(0) - counts
        """Place of the first token of each picture: (B,)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """Mix v (1, H, T, K) inside each picture: FlexAttention on CUDA, picture by picture elsewhere."""
        if q.device.type == "cuda":
            mixed: Tensor = flex()[0](q, k.to(q.dtype), v.to(q.dtype), block_mask=self.mask, scale=scale)
            return mixed
        parts = (torch.split(part, self.lengths, dim=2) for part in (q, k, v))
        mixed_parts = [
            F.scaled_dot_product_attention(own_q, own_k, own_v, scale=scale)
            for own_q, own_k, own_v in zip(*parts, strict=True)
        ]
        return torch.cat(mixed_parts, dim=2)

    @functools.cached_property
    def mask(self) -> Any:
        """Which blocks of queries and keys belong to one picture, as FlexAttention reads it."""
        picture, count = self.picture, len(self.picture)

        def is_same(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return picture[query] == picture[key]

        return flex()[1](is_same, B=None, H=None, Q_LEN=count, KV_LEN=count, device=str(picture.device))

    def first(self, tokens: Tensor, count: int) -> Tensor:
        """Return the first tokens of each picture from a sequence (1, T, D): (B, count, D)."""
        places = self.starts[:, None] + torch.arange(count, device=tokens.device)
        return tokens[0][places]


@functools.cache
def flex() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return FlexAttention as one kernel (uncompiled it would compute all T x T products), and its mask."""
    # Only on CUDA: the import takes longer than a small model on a CPU.
    module = importlib.import_module("torch.nn.attention.flex_attention")
    return torch.compile(module.flex_attention, dynamic=True), module.create_block_mask
