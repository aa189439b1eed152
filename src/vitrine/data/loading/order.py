"""The order of images: a pure function of seed, epoch and position, the same on any number of processes.

Training reads one endless stream: number c of the stream is position c mod N of epoch c div N. A step takes
the next `batch_size` numbers, so that no image is dropped at the end of an epoch, and resuming at any
step costs nothing. Each process takes its own rows of each global batch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrine.data.randomness import random_words, uniforms
from vitrine.errors import ConfigError

Indices = NDArray[np.int64]
# Rounds of the Feistel network; four suffice in theory for a pseudo-random permutation, two more are a margin.
_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Rows:
    """Which images fill the rows of one batch: source index, epoch and position in the epoch, (B,) each."""

    step: int
    indices: Indices
    epochs: Indices
    positions: Indices


def index_at(positions: Indices, *, epoch: int, seed: int, length: int) -> Indices:
    """Source index at each position of an epoch: a permutation of range(length), computed without storing it.

    A Feistel network permutes the next power of four; numbers outside the range are permuted again
    until they are inside, at most four times on average.
    """
    half = max(1, ((length - 1).bit_length() + 1) // 2)
    keys = random_words(
        seed, stream="order", epochs=epoch, positions=np.arange(_ROUNDS, dtype=np.uint64), count=2
    ).astype(np.uint64)  # (rounds, 2)
    values = np.asarray(positions, dtype=np.uint64).copy()
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        values[outside] = _feistel(values[outside], half, keys)
        outside = values >= np.uint64(length)
    return values.astype(np.int64)


def training_rows(
    step: int,
    *,
    length: int,
    batch_size: int,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    repeats: int = 1,
) -> Rows:
    """Rows of global batch `step` (from 0) that process `rank` of `world_size` reads.

    With `repeats`, a batch holds only every `repeats`-th image, but that many times (arXiv:1902.05509). Copies are
    far apart, so that neighbours, which mixup mixes, are different images; each has an epoch and position of its
    own in the stream, from which its crop and augmentation are drawn.
    """
    check_batch(batch_size, rank=rank, world_size=world_size)
    own = batch_size // world_size
    row = rank * own + np.arange(own, dtype=np.int64)
    distinct = -(-batch_size // repeats)
    image_epochs, image_positions = np.divmod(step * distinct + row % distinct, length)
    indices = np.empty(own, dtype=np.int64)
    for epoch in np.unique(image_epochs):
        rows = image_epochs == epoch
        indices[rows] = index_at(image_positions[rows], epoch=int(epoch), seed=seed, length=length)
    epochs, positions = np.divmod(step * batch_size + row, length)
    return Rows(step, indices, epochs, positions)


def view_numbers(rows: Rows, *, seed: int, count: int, alternates_flip: bool) -> NDArray[np.float64]:
    """Draw the numbers of a view, (B, count): the first below a half flips the image.

    With `alternates_flip`, an image is flipped in every other epoch; the seed decides which images begin flipped.
    """
    numbers = uniforms(seed, stream="view", epochs=rows.epochs, positions=rows.positions, count=count)
    if alternates_flip:
        words = random_words(seed, stream="flip", epochs=0, positions=rows.indices, count=1)[:, 0]
        is_flipped = (words.astype(np.int64) + rows.epochs) % 2 == 1
        numbers[:, 0] = np.where(is_flipped, 0.0, 0.5)
    return numbers


def evaluation_rows(*, length: int, batch_size: int, rank: int = 0, world_size: int = 1) -> list[Rows]:
    """All batches that process `rank` scores: over all processes, every image exactly once, in order.

    Processes may have different numbers of batches; the last one of each may be smaller.
    """
    if batch_size < 1 or not 0 <= rank < world_size:
        raise ConfigError(
            f"batch_size must be at least 1 and rank from 0 to {world_size - 1}, got {batch_size} and {rank}"
        )
    first, last = rank * length // world_size, (rank + 1) * length // world_size
    batches = []
    for step, start in enumerate(range(first, last, batch_size)):
        indices = np.arange(start, min(start + batch_size, last), dtype=np.int64)
        batches.append(Rows(step, indices, np.zeros_like(indices), indices))
    return batches


def check_batch(batch_size: int, *, rank: int, world_size: int) -> None:
    """Refuse a global batch that cannot be divided equally."""
    if batch_size < 1 or batch_size % world_size:
        below = max(world_size, batch_size // world_size * world_size)
        raise ConfigError(
            f"batch_size must be a multiple of the number of processes, got {batch_size} and {world_size}; "
            f"nearest that fit: {below} and {below + world_size}"
        )
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank must be from 0 to {world_size - 1}, got {rank}")


def _feistel(values: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask = np.uint64((1 << half) - 1)
    left, right = values >> np.uint64(half), values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + (key[0] << np.uint64(32) | key[1])) & mask)
    return left << np.uint64(half) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64 bits (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
