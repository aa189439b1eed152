"""The shared parts of the four kernels of TNT's inner transformer: norm, loads and stores, stochastic depth.

Each half (word_attention.py, word_mlp.py) is one kernel forward and one backward, norm and residual included.

A patch has up to 16 words of 24 channels: too small for the kernels of attention and of matrix products, which spend
the time on memory traffic and empty lanes. Here a program takes the words of a few patches at a time and keeps
everything between norm and residual on the chip; backward it computes that again, so only a half's input is kept.
Masks on the channels separate heads, masks on the logits separate patches: nothing is split or transposed in memory.

Weight gradients are sums over all words. Every program writes its own, summed by the caller in a fixed order.

Shapes: R words of all patches, W words per patch, C channels.
"""

import triton
import triton.language as tl

# All of TNT's norms; a constant here, as the compiler may turn a layer's own number into an input.
EPS = 1e-5


@triton.jit
def _unit(x, in_width, C: tl.constexpr, EPS: tl.constexpr):
    """Return rows of zero mean and unit variance, and the inverse of their standard deviations."""
    mean = tl.sum(x, 1) / C
    centred = tl.where(in_width[None, :], x - mean[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / C + EPS)
    return centred * inverse[:, None], inverse


@triton.jit
def _unit_backward(d_unit, unit, inverse, in_width, C: tl.constexpr):
    """Return the gradient of the rows that `_unit` normalised."""
    mean = tl.sum(d_unit, 1) / C
    along = tl.sum(d_unit * unit, 1) / C
    d_x = (d_unit - mean[:, None] - unit * along[:, None]) * inverse[:, None]
    return tl.where(in_width[None, :], d_x, 0.0)


@triton.jit
def _vector(source, index, size: tl.constexpr):
    return tl.load(source + index, mask=index < size, other=0.0).to(tl.float32)


@triton.jit
def _matrix(source, row, column, rows: tl.constexpr, columns: tl.constexpr):
    """Load a matrix (rows, columns), padded with zeros."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(source + row[:, None] * columns + column[None, :], mask=inside, other=0.0)


@triton.jit
def _store_matrix(target, values, row, column, rows: tl.constexpr, columns: tl.constexpr):
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(target + row[:, None] * columns + column[None, :], values, mask=inside)


@triton.jit
def _factor(factors, row, R, W: tl.constexpr, HAS_FACTORS: tl.constexpr):
    """Load the factor of stochastic depth for each word's branch: one number per patch."""
    if HAS_FACTORS:
        factor = tl.load(factors + row // W, mask=row < R, other=0.0)
    else:
        factor = (row < R).to(tl.float32)
    return factor


def padded(size: int) -> int:
    """Return the size of a tile: a power of two that a matrix product accepts."""
    return max(triton.next_power_of_2(size), 16)
