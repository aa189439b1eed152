"""How a layout is declared: each tensor of the file is a view of one of ours.

One declaration works both ways. To write, take the view and save it. To read, copy the file's tensor into the
view. Views only rename, split, transpose and reshape, so both ways are exact to the bit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class View:
    """A view of one of our tensors, and its name in reports."""

    operation: str
    apply: Callable[[Tensor], Tensor]
    is_flat: bool = False
    """Whether the file has all axes but the first as one, which no view of a permuted tensor can."""

    def shape_in_file(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in the file of one of our tensors of `shape`."""
        viewed = tuple(self.apply(torch.empty(shape, device="meta")).shape)
        return (viewed[0], math.prod(viewed[1:])) if self.is_flat else viewed

    def written(self, tensor: Tensor) -> Tensor:
        """Return the file's tensor from ours."""
        viewed = self.apply(tensor)
        return viewed.flatten(1) if self.is_flat else viewed


@dataclass(frozen=True)
class Rule:
    """One tensor of the file, by its name there, and its place in our tensor."""

    theirs: str
    ours: tuple[str, ...]
    view: View
    is_stacked: bool = False
    """Whether the file stacks all of `ours` along a new first axis (scanned layers)."""
    is_joined: bool = False
    """Whether the file has all of `ours` one after the other along an axis (a layer that we keep apart)."""
    axis: int = 0
    """The axis along which they are joined."""


SAME = View("renamed", lambda tensor: tensor)
# A dense kernel of JAX is (in, out), torch's (out, in).
TRANSPOSED = View("transposed", lambda tensor: tensor.T)
# A convolution's kernel of JAX is HWIO, torch's OIHW.
HWIO = View("transposed", lambda tensor: tensor.permute(2, 3, 1, 0))
# Old official files keep a group norm's scale as (1, 1, 1, channels).
FOUR_AXES = View("reshaped", lambda tensor: tensor.view(1, 1, 1, -1))
# A dense layer stored as a 1x1 convolution: OIHW, HWIO.
ONE_BY_ONE = View("reshaped", lambda tensor: tensor[:, :, None, None])
ONE_BY_ONE_HWIO = View("transposed", lambda tensor: tensor.T[None, None])


# A patch kernel as a dense layer of flat patches, channels last (NaFlex).
FLAT_PATCHES = View("flattened", lambda tensor: tensor.permute(0, 2, 3, 1), is_flat=True)


def part(index: int, *, of: int) -> View:
    """Take one of several layers that we keep fused: q, k or v of `to_qkv`."""
    return View("split", lambda tensor: tensor.chunk(of)[index])


def heads_of_kernel(index: int, *, of: int, num_heads: int) -> View:
    """Take q, k or v of a fused kernel in JAX's shape: (in, heads, channels per head)."""
    return View("split and transposed", lambda tensor: split_axis(tensor.chunk(of)[index].T, 1, num_heads))


def heads_of_bias(index: int, *, of: int, num_heads: int) -> View:
    """Take q, k or v of a fused bias in JAX's shape: (heads, channels per head)."""
    return View("split and reshaped", lambda tensor: split_axis(tensor.chunk(of)[index], 0, num_heads))


def joined_heads(*, num_heads: int) -> View:
    """View the output projection in JAX's shape: (heads, channels per head, out)."""
    return View("transposed", lambda tensor: split_axis(tensor.T, 0, num_heads))


def split_axis(tensor: Tensor, axis: int, count: int) -> Tensor:
    """View one axis as two, the first of `count` entries."""
    shape = (*tensor.shape[:axis], count, tensor.shape[axis] // count, *tensor.shape[axis + 1 :])
    return tensor.view(shape)


def rule(theirs: str, ours: str, view: View = SAME) -> Rule:
    """Declare one tensor."""
    return Rule(theirs, (ours,), view)


def layer(theirs: str, ours: str) -> list[Rule]:
    """Declare weight and bias of a layer that both sides store alike."""
    return [rule(f"{theirs}.{kind}", f"{ours}.{kind}") for kind in ("weight", "bias")]
