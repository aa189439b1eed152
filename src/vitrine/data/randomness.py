"""Random numbers that are a pure function of seed, stream, epoch and position: no state, any order.

Philox 4x32-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"), vectorised over images.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

# One stream per use, so that two uses of the same image never share numbers.
STREAMS = {
    name: number
    for number, name in enumerate(("order", "view", "augment", "mix", "generated", "crops", "three", "flip"))
}

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def uniforms(
    seed: int, *, stream: str, epochs: ArrayLike, positions: ArrayLike, count: int
) -> NDArray[np.float64]:
    """Draw `count` numbers in [0, 1) for each (epoch, position): (B, count)."""
    words = random_words(seed, stream=stream, epochs=epochs, positions=positions, count=count)
    return words.astype(np.float64) * 2.0**-32


def random_words(
    seed: int, *, stream: str, epochs: ArrayLike, positions: ArrayLike, count: int
) -> NDArray[np.uint32]:
    """Draw `count` words of 32 bits for each (epoch, position): (B, count)."""
    position = np.atleast_1d(np.asarray(positions, dtype=np.uint64))
    epoch = np.broadcast_to(np.asarray(epochs, dtype=np.uint64), position.shape)
    blocks = -(-count // 4)
    block = np.arange(blocks, dtype=np.uint64)
    shape = (len(position), blocks)
    counter = [
        np.broadcast_to((position & _LOW)[:, None], shape),
        np.broadcast_to((position >> _SHIFT)[:, None], shape),
        np.broadcast_to((epoch & _LOW)[:, None], shape),
        np.broadcast_to(block, shape),
    ]
    key = (seed & 0xFFFFFFFF, ((seed >> 32) & 0xFFFFFF) | STREAMS[stream] << 24)
    words = np.stack(philox(counter, key), axis=2)  # (B, blocks, 4)
    return words.reshape(len(position), blocks * 4)[:, :count].astype(np.uint32)


def philox(counter: list[NDArray[np.uint64]], key: tuple[int, int]) -> list[NDArray[np.uint64]]:
    """Turn four counter words (as uint64 arrays) and two key words into four random words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (second >> _SHIFT) ^ c1 ^ np.uint64(k0),
            second & _LOW,
            (first >> _SHIFT) ^ c3 ^ np.uint64(k1),
            first & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def beta_from_uniforms(numbers: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Turn rows of uniforms (B, `BETA_UNIFORMS`) into draws of Beta(alpha, alpha): (B,)."""
    half = BETA_UNIFORMS // 2
    first, second = _gamma(numbers[:, :half], alpha), _gamma(numbers[:, half:], alpha)
    draws: NDArray[np.float64] = first / np.maximum(first + second, np.finfo(np.float64).tiny)
    return draws


# Two gamma draws, each with eight attempts of three uniforms, and one more uniform.
_ATTEMPTS = 8
BETA_UNIFORMS = 2 * (3 * _ATTEMPTS + 1)


def _gamma(numbers: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Gamma(alpha) by Marsaglia and Tsang's method; each attempt is accepted in over 95 % of cases."""
    d = (alpha + 1 if alpha < 1 else alpha) - 1 / 3
    c = 1 / np.sqrt(9 * d)
    u1, u2, u3 = (numbers[:, first : 3 * _ATTEMPTS : 3] for first in range(3))  # (B, attempts) each
    normal = np.sqrt(-2 * np.log1p(-u1)) * np.cos(2 * np.pi * u2)
    cube = np.maximum(1 + c * normal, 0) ** 3
    with np.errstate(divide="ignore"):
        is_good = (cube > 0) & (np.log(1 - u3) < 0.5 * normal**2 + d - d * cube + d * np.log(cube))
    chosen = np.argmax(is_good, axis=1)
    draw = d * cube[np.arange(len(cube)), chosen]
    draw[~is_good.any(axis=1)] = d  # once in 10^10 draws: the mean is close enough
    if alpha < 1:
        draw *= (1 - numbers[:, -1]) ** (1 / alpha)
    return np.asarray(draw)
