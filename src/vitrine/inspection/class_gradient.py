"""Gradient-weighted attention for a class: the patches that support it (after arXiv:2103.15679).

Shapes: B images, H heads, T tokens, N = GH x GW patches, K channels per head.
"""

from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError
from vitrine.evaluation.outputs import evaluating
from vitrine.inspection.streaming import (
    Images,
    grid_of,
    joined,
    num_pieces,
    on_grid,
    pieces,
    require_attention,
)
from vitrine.models import Model, ViT
from vitrine.models.encoder import Block
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
    return joined(parts)


def class_relevance(model: ViT, images: Tensor, *, target: int | None) -> Tensor:
    """Return the relevance of every token for the output, (B, T).

    This is the output's row of (I + W_L) ... (I + W_1), so a row is propagated down instead of a matrix up. The
    forward pass keeps only the blocks' inputs; the way down recomputes each block, so that the gradients of one
    layer are in memory at a time.
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
    assert isinstance(block, Block)
    B, T, D = tokens.shape
    with torch.enable_grad():
        tokens = tokens.detach().requires_grad_()
        read, keys = model.block_input(tokens, grid, layer=layer)
        q, k, v = block.attention.project(block.norm_1(read))
        bias = None if keys is None else block.attention.relative_logits(q, keys)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  # (B, H, T, K)
        out = read + block.scale_1(block.attention.to_out(mixed.transpose(1, 2).reshape(B, T, D)))
        out = out + block.scale_2(block.mlp(block.norm_2(out)))
        of_mixed, below = torch.autograd.grad(out, (mixed, tokens), above)
        del out, mixed  # free what autograd kept for this block
    weighted = tokens.new_zeros(B, T, T)
    with torch.no_grad():
        for head in range(q.shape[1]):  # one head at a time: one (T, T) matrix in memory
            logits = q[:, head] @ k[:, head].transpose(-2, -1) * q.shape[-1] ** -0.5
            weights = (logits if bias is None else logits + bias[:, head]).softmax(dim=-1)
            # mixed = A v, so the gradient with respect to A is that of mixed times v.
            weighted += (weights * (of_mixed[:, head] @ v[:, head].transpose(-2, -1))).clamp(min=0)
    return weighted / q.shape[1], below
