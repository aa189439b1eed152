"""Mimetic initialisation of attention (Trockman and Kolter, arXiv:2305.09828): the structure of trained models.

In trained ViTs the product of query and key weights is close to a multiple of the identity, and that of value and
output weights to a negative one. A fresh model starts with both:

    W_Q W_K^T = a_1 Z_1 + b_1 I  (for every head, truncated to its rank)      W_V W_O = a_2 Z_2 - b_2 I

with entries of Z normal of variance 1 / D, each product divided into its factors by the singular value decomposition.
The paper goes with positions of sines and cosines (`positions: sincos_2d`).

Shapes: D width, H heads, K = D / H channels per head.
"""

import torch
from torch import Tensor, nn

# The paper's, section 4: noise and identity of queries and keys, then of values and output.
QUERY_KEY = (0.7, 0.7)
VALUE_OUTPUT = (0.4, 0.4)


def initialise_mimetic(to_qkv: nn.Linear, to_out: nn.Linear, *, num_heads: int) -> None:
    """Fill the layers (D, 3 D) and (D, D) of an attention; biases are zero."""
    D = to_out.in_features
    queries, keys = factors(
        D, count=num_heads, noise=QUERY_KEY[0], identity=QUERY_KEY[1], rank=D // num_heads
    )
    values, outputs = factors(D, count=1, noise=VALUE_OUTPUT[0], identity=-VALUE_OUTPUT[1], rank=D)
    # A layer's weight is (outputs, inputs): W_Q, W_K and W_V transposed, head after head; W_O transposed.
    rows = [part.mT.reshape(D, D) for part in (queries, keys, values)]
    with torch.no_grad():
        to_qkv.weight.copy_(torch.cat(rows))
        to_out.weight.copy_(outputs[0])
    for layer in (to_qkv, to_out):
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def factors(width: int, *, count: int, noise: float, identity: float, rank: int) -> tuple[Tensor, Tensor]:
    """Draw `count` matrices noise x Z + identity x I and divide each: L, R (count, D, rank), L R^T nearest to it."""
    product = noise * torch.randn(count, width, width) * width**-0.5 + identity * torch.eye(width)
    left, values, right = torch.linalg.svd(product)
    root = values[:, None, :rank].sqrt()
    return left[..., :rank] * root, right.mT[..., :rank] * root
