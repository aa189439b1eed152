"""Random numbers keyed by image, so that dropout does not depend on the batching or the number of processes.

In training every image has a key. A layer's random number for an image is a hash of the image's key, the layer's
number and the position in the tensor: the same in any micro-batch, on any process and when a layer is recomputed.
Without keys, numbers come from torch's generator.

Shapes: B rows of a batch: K images with one or more views each, the views of one image next to each other.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The finaliser of a low-bias 32-bit hash (Wellons, "hash-prospector", 2018), as signed numbers.
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B - 2**32
# Number of the draw of patches; layers count from 0.
_PATCHES = -1
_BITS = 24  # bits that a float32 represents exactly


class _Batch:
    """Keys of the current images. Not a context variable: CUDA's backward pass, in another thread, may redraw."""

    keys: Tensor | None = None
    picture: Tensor | None = None
    """In a packed sequence, the number of the picture that each token belongs to."""
    num_pictures = 0


_batch = _Batch()


class RandomLayer(nn.Module):
    """A layer that draws random numbers; its own number separates them from those of other layers."""

    number = 0

    def draw(self, *shape: int, device: torch.device) -> Tensor:
        """Draw uniform numbers in [0, 1) for rows (B, ...)."""
        if _batch.keys is None:
            return torch.rand(shape, device=device)
        words = hashed(_batch.keys, shape, number=self.number)
        return ((words >> 8) & (2**_BITS - 1)).float() * 2.0**-_BITS

    def keeps(self, *shape: int, rate: float, device: torch.device) -> Tensor:
        """Draw a mask of kept values for rows (B, ...) at this drop rate."""
        if _batch.keys is None:
            return torch.rand(shape, device=device) >= rate
        return hashed(_batch.keys, shape, number=self.number) >= threshold(rate)


class Dropout(RandomLayer):
    """In training, zero random values and scale the others to keep the mean."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values: Tensor) -> Tensor:
        """Map rows (B, ...) to rows of the same shape."""
        if not self.training or self.rate == 0:
            return values
        if _batch.keys is None:
            return F.dropout(values, self.rate)
        if _batch.picture is not None:
            # Each token's key comes from its picture's, so the other pictures of the batch do not change its draws.
            with randomness_of(token_keys(_batch.keys, _batch.picture)):
                kept = self.keeps(values.shape[1], values.shape[2], rate=self.rate, device=values.device)
            return values * kept[None] * (1 / (1 - self.rate))
        kept = self.keeps(*values.shape, rate=self.rate, device=values.device)
        return values * kept * (1 / (1 - self.rate))


class StochasticDepth(RandomLayer):
    """In training, skip a residual branch for random images."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        """Zero the branch of dropped images and scale the others to keep the mean."""
        if not self.training or self.rate == 0:
            return branch
        count = branch.shape[0] if _batch.picture is None else _batch.num_pictures
        kept = self.keeps(count, 1, 1, rate=self.rate, device=branch.device)
        if _batch.picture is not None:
            kept = kept[_batch.picture, 0][None]
        return branch * kept.to(branch.dtype) / (1 - self.rate)


@contextmanager
def randomness_of(keys: Tensor) -> Iterator[None]:
    """Use the keys (K,) of these images for every draw inside the block, backward pass included."""
    before, _batch.keys = _batch.keys, keys
    try:
        yield
    finally:
        _batch.keys = before


@contextmanager
def in_segments(picture: Tensor, *, count: int) -> Iterator[None]:
    """Draw for the pictures of a packed sequence (1, T, D) inside the block; `picture` (T,) numbers its tokens."""
    _batch.picture, _batch.num_pictures = picture, count
    try:
        yield
    finally:
        _batch.picture = None


def drawn_patches(num_images: int, num_patches: int, *, num_kept: int, device: torch.device) -> Tensor:
    """Draw which patches of each image are kept: their numbers (B, num_kept), in any order."""
    if _batch.keys is None:
        words = torch.rand(num_images, num_patches, device=device)
    else:
        words = hashed(_batch.keys, (num_images, num_patches), number=_PATCHES)
    return words.topk(num_kept, dim=1).indices


def token_keys(keys: Tensor, picture: Tensor) -> Tensor:
    """Return a key for every token (T,) of the pictures with these keys."""
    places = torch.arange(len(picture), device=picture.device)
    starts = torch.searchsorted(picture, picture)  # the first token of the same picture
    return mixed(keys[picture] ^ mixed((places - starts).to(torch.int32)))


def number_random_layers(model: nn.Module) -> None:
    """Number the layers that draw."""
    layers = (module for module in model.modules() if isinstance(module, RandomLayer))
    for number, layer in enumerate(layers):
        layer.number = number


def image_keys(seed: int, *, first: int, count: int, device: torch.device) -> Tensor:
    """Return the keys of `count` images of a run, starting at image `first` of its stream: (K,), 32 bits each."""
    numbers = torch.arange(first, first + count, device=device)  # int64: a run may see more than 2^32 images
    low, high = numbers.to(torch.int32), (numbers >> 32).to(torch.int32)
    return mixed(mixed(mixed(low) ^ high) ^ signed(seed * 0x9E3779B1))


def hashed(keys: Tensor, shape: tuple[int, ...], *, number: int) -> Tensor:
    """Return a random word for every element of rows (B, ...) with these keys (K,)."""
    size = math.prod(shape) // len(keys)
    # A layer that also sees other shapes (large and small views) draws other numbers for them.
    own = keys ^ signed((number + 1) * 0x9E3779B1 + size * 0x85EBCA6B)
    if size == 1:
        return mixed(own).view(shape)
    places = torch.arange(size, device=keys.device, dtype=torch.int32)
    return mixed(mixed(places)[None, :] ^ own[:, None]).view(shape)


def mixed(words: Tensor) -> Tensor:
    """Scramble 32-bit words; torch's right shift copies the sign bit, so the high bits are masked."""
    words = words ^ ((words >> 16) & 0xFFFF)
    words = words * _FIRST
    words ^= (words >> 15) & 0x1FFFF
    words *= _SECOND
    words ^= (words >> 16) & 0xFFFF
    return words


def threshold(rate: float) -> int:
    """Return the signed word below which this fraction of all signed words lies."""
    return int((rate - 0.5) * 2**32)


def signed(number: int) -> int:
    """Return the signed word with the low 32 bits of a number."""
    return (number + 2**31) % 2**32 - 2**31
