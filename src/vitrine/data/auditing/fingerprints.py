"""Fingerprints of an image: a hash of its bytes, a small grey thumbnail of its content, and its colours.

A copy that was re-compressed, brightened or slightly shifted has other bytes. Its thumbnail still correlates with
that of the original once both are aligned; `near_duplicates` searches for such pairs. A red and a green disc are the
same in grey: only their colours tell them apart.

Shapes: N images, S = 32 the thumbnail's side, V shifted views of an image, K = 63 numbers per descriptor.
"""

import hashlib
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image

from vitrine.data.decoding.image_file import Pixels

Numbers: TypeAlias = NDArray[np.float32]

THUMBNAIL_SIDE = 32
# Largest shift of a copy, in pixels of the thumbnail (6 % of the side each way). All comparisons exclude this border,
# so that pixels which a shift brought in (black, repeated or new) do not count.
REACH = 2
WINDOW = THUMBNAIL_SIDE - 2 * REACH
HASH_BYTES = 16
# Frequencies kept along each side. Eight is the best of 4, 6, 8 and 10 on moved and re-compressed CIFAR-10.
_FREQUENCIES = 8
# ITU-R 601, as Pillow's own conversion to grey.
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
# Cells along each side in which colour is averaged: a shift of REACH moves a picture by a quarter of a cell.
COLOUR_SIDE = 4
# Cb and Cr of ITU-R 601 from red, green and blue, 0 for grey.
_CHROMA = np.array([[-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], dtype=np.float32)
# Root mean square of Cb and Cr over a picture (of 127) below which it counts as grey.
_LEAST_CHROMA = 1.5
# A window whose standard deviation (of 255) is below this has nothing to recognise.
_LEAST_CONTRAST = 2.0


def content_hash(data: bytes | Pixels) -> bytes:
    """Hash the bytes of a file, or the shape and samples of raw pixels, to 16 bytes."""
    if isinstance(data, bytes):
        return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()
    shape = repr(data.shape).encode()
    return hashlib.blake2b(shape + np.ascontiguousarray(data).tobytes(), digest_size=HASH_BYTES).digest()


def grey_thumbnail(pixels: Pixels) -> Pixels:
    """Shrink (H, W, C) to (32, 32) grey by averaging; the aspect ratio is not kept."""
    if pixels.shape[:2] == (THUMBNAIL_SIDE, THUMBNAIL_SIDE):
        grey = pixels.astype(np.float32) @ _LUMA if pixels.shape[2] == 3 else pixels[:, :, 0]
        return np.rint(grey).astype(np.uint8)
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    # Averaging over the exact area turns a slightly shifted copy into a slightly shifted thumbnail.
    return np.asarray(image.convert("L").resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX))


def colour_cells(pixels: Pixels) -> NDArray[np.int8]:
    """Average the colour of (H, W, C) in 4 x 4 cells: Cb and Cr, (4, 4, 2), 0 for grey."""
    if pixels.shape[2] != 3:
        return np.zeros((COLOUR_SIDE, COLOUR_SIDE, 2), dtype=np.int8)
    cells = Image.fromarray(pixels).resize((COLOUR_SIDE, COLOUR_SIDE), Image.Resampling.BOX)
    return np.rint(np.asarray(cells, dtype=np.float32) @ _CHROMA.T).clip(-127, 127).astype(np.int8)


def colour_difference(first: NDArray[np.int8], second: NDArray[np.int8]) -> Numbers:
    """Compare the colours (N, 4, 4, 2) of pairs, relative to how colourful they are: (N,), 0 for equal colours.

    The smaller of the difference between cells and the difference between means: a shift changes cells, not the mean.
    A grey picture may be the copy of a coloured one, so their difference is 0.
    """
    one, other = (
        cells.reshape(len(cells), COLOUR_SIDE**2, 2).astype(np.float32) for cells in (first, second)
    )  # (N, 16, 2)
    strengths = [np.sqrt(np.square(cells).sum(2).mean(1)) for cells in (one, other)]  # 2 x (N,)
    means = [cells.mean(1) for cells in (one, other)]  # 2 x (N, 2)
    of_cells = np.sqrt(np.square(one - other).sum(2).mean(1)) / np.maximum(np.maximum(*strengths), 1)
    length = np.maximum(*(np.linalg.norm(mean, axis=1) for mean in means))
    of_means = np.linalg.norm(means[0] - means[1], axis=1) / np.maximum(length, 1)
    return np.where(np.minimum(*strengths) < _LEAST_CHROMA, np.float32(0), np.minimum(of_cells, of_means))


def descriptors(thumbnails: NDArray[np.uint8], *, top: int = REACH, left: int = REACH) -> Numbers:
    """Describe the window at (top, left) of thumbnails (N, 32, 32) by low frequencies: (N, 63), length 1.

    Without the mean and with length 1, so that brightness and contrast do not count. Windows without contrast become
    0 and match nothing.
    """
    windows = thumbnails[:, top : top + WINDOW, left : left + WINDOW].astype(np.float32)
    waves = _cosines(WINDOW, _FREQUENCIES)
    spectrum = np.matmul(waves, windows @ waves.T)  # (N, 8, 8)
    flat = spectrum.reshape(len(windows), -1)[:, 1:]  # (N, 63): without the mean
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    return np.where(length > _LEAST_CONTRAST * WINDOW, flat / np.maximum(length, 1.0), np.float32(0))


def shifted_descriptors(thumbnails: NDArray[np.uint8], *, step: int = REACH) -> list[Numbers]:
    """Describe thumbnails shifted by -REACH to REACH, every `step` pixels: V arrays (N, 63)."""
    offsets = range(0, 2 * REACH + 1, step)
    return [descriptors(thumbnails, top=top, left=left) for top, left in product(offsets, offsets)]


def aligned_similarity(
    queries: NDArray[np.uint8] | Numbers, others: NDArray[np.uint8] | Numbers
) -> tuple[Numbers, Numbers]:
    """Correlate pairs of thumbnails (N, 32, 32), at the best shift: grey and detail, (N,).

    `grey` is the correlation of the windows. `detail` is the same after the mean of every row and column is
    subtracted: a horizon or a bright sky makes two different photos agree in grey, not in detail.
    """
    base = others[:, REACH:-REACH, REACH:-REACH].astype(np.float32)
    mean = base.mean((1, 2), keepdims=True)
    detail_of_base = base - base.mean(2, keepdims=True) - base.mean(1, keepdims=True) + mean
    patterns = np.stack([base - mean, detail_of_base], axis=3).reshape(len(base), -1, 2)  # (N, 784, 2)
    patterns /= np.maximum(np.linalg.norm(patterns, axis=1, keepdims=True), 1.0)
    moved = queries.astype(np.float32)
    windows = sliding_window_view(moved, (WINDOW, WINDOW), axis=(1, 2)).reshape(len(moved), -1, WINDOW**2)
    # The patterns have no mean (and no row or column means), so the windows need not be centred here.
    agreement = windows @ patterns  # (N, 25, 2), every shift up to REACH
    similarity = agreement / np.maximum(_window_lengths(moved), 1.0)
    best = similarity[np.arange(len(moved)), similarity[:, :, 1].argmax(1)]  # (N, 2)
    return best[:, 0], best[:, 1]


def finely_aligned_similarity(
    queries: NDArray[np.uint8], others: NDArray[np.uint8]
) -> tuple[Numbers, Numbers]:
    """Correlate pairs as `aligned_similarity` does, at half-pixel shifts: down, right, and both.

    A copy of a large photo that was moved or cropped a little has moved by a fraction of a thumbnail's pixel.
    Both images move by a quarter of a pixel, in opposite directions, so that both are blurred equally.
    """
    grey, detail = np.full(len(queries), -1.0, np.float32), np.full(len(queries), -1.0, np.float32)
    for axes in ((1,), (2,), (1, 2)):
        moved, back = queries.astype(np.float32), others.astype(np.float32)
        for axis in axes:
            moved, back = _quarter(moved, axis, forth=True), _quarter(back, axis, forth=False)
        new_grey, new_detail = aligned_similarity(moved, back)
        is_better = new_detail > detail
        grey, detail = np.where(is_better, new_grey, grey), np.where(is_better, new_detail, detail)
    return grey, detail


def _quarter(images: Numbers, axis: int, *, forth: bool) -> Numbers:
    """Move by a quarter of a pixel along `axis`; the last row or column stays."""
    width = [(0, 0)] * images.ndim
    width[axis] = (0, 1)
    padded = np.pad(images, width, mode="edge")
    here, after = (
        np.take(padded, range(THUMBNAIL_SIDE), axis),
        np.take(padded, range(1, THUMBNAIL_SIDE + 1), axis),
    )
    return 0.75 * here + 0.25 * after if forth else 0.25 * here + 0.75 * after


def _window_lengths(images: Numbers) -> Numbers:
    """Length of every window of (N, 32, 32) without its mean, and without its rows' and columns' means.

    Returns (N, 25, 2), from running sums, without a loop over the windows.
    """
    exact = images.astype(np.float64)  # running sums of squares lose too many digits in single precision
    row_sums, column_sums = _running(exact, 2), _running(exact, 1)  # (N, 32, 5), (N, 5, 32)
    mean_power = _running(row_sums, 1) ** 2 / WINDOW**2  # (N, 5, 5)
    power = _running(_running(exact**2, 2), 1) - mean_power
    rows = _running(row_sums**2, 1) / WINDOW - mean_power
    columns = _running(column_sums**2, 2) / WINDOW - mean_power
    lengths = np.stack([power, power - rows - columns], axis=3)
    return np.sqrt(np.maximum(lengths, 0)).reshape(len(images), -1, 2).astype(np.float32)


def _running(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Sum over every window of 28 along `axis`: 32 become 5."""
    sums = np.cumsum(values, axis=axis)
    ends = np.take(sums, range(WINDOW - 1, THUMBNAIL_SIDE), axis=axis)
    starts = np.take(sums, range(2 * REACH), axis=axis)
    width = [(0, 0)] * values.ndim
    width[axis] = (1, 0)  # before the first window there is nothing
    return ends - np.pad(starts, width)


def _cosines(length: int, count: int) -> Numbers:
    """Return the first cosines of the discrete cosine transform, each of length 1: (count, length)."""
    waves = np.cos(np.pi / length * np.arange(count)[:, None] * (np.arange(length)[None] + 0.5))
    unit: Numbers = (waves / np.linalg.norm(waves, axis=1, keepdims=True)).astype(np.float32)
    return unit
