"""Gradient-weighted attention for a class: the patches that support it (after arXiv:2103.15679).

Shapes: B images, H heads, T tokens, N = GH x GW patches, K channels per head.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError
from vitrine.evaluation.outputs import evaluating
from vitrine.inspection.streaming import (
    Images,
    concatenated,
    grid_of,
    num_pieces,
    on_grid,
    pieces,
    require_attention,
)
from vitrine.models import Model, ViT
from vitrine.models.attention import Places
from vitrine.models.encoder import Block, ParallelBlock
from vitrine.models.positions import Grid
from vitrine.runtime.progress import track


def class_attention(model: Model, images: Images, *, target: int | None = None) -> NDArray[Any]:
    """Return how much each patch's attention supports a class, (B, GH, GW), at least 0.

    In each layer the attention weights are multiplied by their gradient of the class's logit; the positive part is
    averaged over heads and propagated through the layers with the residual branch. `target` is the class index; by
    default each image's own prediction.
    """
    vit = require_attention(model)
    if vit.head is None:
        raise ConfigError("the model has no head, so no class has a gradient; load a model with a classifier")
    if target is not None and not 0 <= target < vit.head.out_features:
        raise ConfigError(f"classes go from 0 to {vit.head.out_features - 1}, got {target}")
    parts = []
    with evaluating(vit):
        for piece in track(pieces(vit, images), "Attention for a class", total=num_pieces(vit, images)):
            relevance = class_relevance(vit, piece, target=target)[:, vit.num_leading_tokens :]
            parts.append(on_grid(relevance, grid_of(vit, piece)))
    return concatenated(parts)


def class_relevance(model: ViT, images: Tensor, *, target: int | None) -> Tensor:
    """Return the relevance of every token for the output, (B, T).

    This is the output's row of (I + W_L) ... (I + W_1), so one row is propagated from the last layer to the
    first instead of a whole matrix. The forward pass keeps only the blocks' inputs; the backward pass recomputes each
    block, so that only one layer's gradients are in memory at a time.
    """
    inputs: list[Tensor] = []
    with torch.no_grad():
        patches, grid = model.embed_patches(images)
        tokens = model.assemble(patches, grid)
        for layer in range(model.config.depth):
            inputs.append(tokens)
            tokens = model.run_block(tokens, grid, layer=layer)
    above = _gradient_of_logit(model, tokens, target=target)
    row = _output_row(model, tokens)
    for layer in reversed(range(model.config.depth)):
        weighted, above = _through_block(model, inputs.pop(), above, grid, layer=layer)
        row = row + (row[:, None] @ weighted)[:, 0]
    return row


def _output_row(model: ViT, tokens: Tensor) -> Tensor:
    """Return the output as weights on the tokens (B, T): the class token, or the mean over patches."""
    row = tokens.new_zeros(tokens.shape[:2])
    if model.config.reads_class_token:
        row[:, 0] = 1
    else:
        first = model.num_leading_tokens
        row[:, first:] = 1 / (tokens.shape[1] - first)
    return row


def _gradient_of_logit(model: ViT, tokens: Tensor, *, target: int | None) -> Tensor:
    with torch.enable_grad():
        tokens = tokens.detach().requires_grad_()
        encoded = tokens if model.config.norm_after_pooling else model.norm(tokens)
        logits = model.classify(encoded)
        chosen = logits.amax(dim=1) if target is None else logits[:, target]
        (gradient,) = torch.autograd.grad(chosen.sum(), tokens)
    return gradient


def _through_block(
    model: ViT, tokens: Tensor, above: Tensor, grid: Grid, *, layer: int
) -> tuple[Tensor, Tensor]:
    """Return mean over heads of (A * dA)+ (B, T, T), and the gradient with respect to the block's input."""
    block = model.blocks[layer]
    assert isinstance(block, (Block, ParallelBlock))
    parts = [block] if isinstance(block, Block) else block.parts
    B, T, _ = tokens.shape
    with torch.enable_grad():
        tokens = tokens.detach().requires_grad_()
        read, places = model.block_input(tokens, grid, layer=layer)
        branches = [_Branch.of(part, read, places) for part in parts]
        out = read
        for part, branch in zip(parts, branches, strict=True):
            out = out + part.scale_1(part.attention.join(branch.mixed))
        out = sum((part.transform(out) for part in parts), out)
        *of_mixed, below = torch.autograd.grad(out, (*(branch.mixed for branch in branches), tokens), above)
        del out  # free the values that autograd kept for this block
    weighted = tokens.new_zeros(B, T, T)
    with torch.no_grad():
        for branch, gradient in zip(branches, of_mixed, strict=True):
            weighted += branch.weighted(gradient)
    return weighted / sum(branch.q.shape[1] for branch in branches), below


@dataclass(frozen=True)
class _Branch:
    """One attention of a block: queries, keys and values (B, H, T, K), and its output `mixed`."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    scale: float
    mixed: Tensor

    @classmethod
    def of(cls, block: Block, read: Tensor, places: Places) -> Self:
        attention = block.attention
        q, k, v = attention.project(block.norm_1(read), places=places)
        bias = attention.added_logits(q, places)
        scale = attention.factor(q)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
        return cls(q, k, v, bias, scale, mixed)

    def weighted(self, gradient: Tensor) -> Tensor:
        """Return the sum over heads of (A * dA)+ (B, T, T)."""
        B, H, T, _ = self.q.shape
        total = gradient.new_zeros(B, T, T)
        for head in range(H):  # one head's (T, T) in memory, not all
            logits = self.q[:, head] @ self.k[:, head].transpose(-2, -1) * self.scale
            weights = (logits if self.bias is None else logits + self.bias[:, head]).softmax(dim=-1)
            # mixed = A v, so the gradient with respect to A is that of mixed times v.
            total += (weights * (gradient[:, head] @ self.v[:, head].transpose(-2, -1))).clamp(min=0)
        return total
