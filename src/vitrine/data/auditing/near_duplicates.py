"""Find images of one set that are copies of images of another, in blocks, so that memory stays bounded.

There are two stages: descriptors of 63 numbers are compared all against all by matrix products, with the query
shifted by -2, 0 and 2 pixels each way; candidates are then compared pixel by pixel at every shift. Features of a
model need the first stage only.

Shapes: Q queries, N images of the base, D numbers per descriptor or feature.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.data.auditing.fingerprints import (
    aligned_similarity,
    colour_difference,
    descriptors,
    finely_aligned_similarity,
    shifted_descriptors,
)
from vitrine.errors import ConfigError
from vitrine.runtime.progress import track

# Measured on CIFAR-10 (docs/experiments.md): copies that were shifted, brightened and re-compressed have grey 0.95
# or more and detail 0.92 or more in 999 of 1,000 cases; different photos of similar scenes reach 0.98 in grey, but
# rarely 0.88 in detail.
LEAST_GREY = 0.93
LEAST_DETAIL = 0.88
# Pairs that agree this much at whole pixels are compared at half pixels too. Interpolation blurs those, which makes
# similar scenes more similar, so the threshold is higher.
_DOUBTFUL = 0.6
LEAST_BLURRED_DETAIL = 0.93
# Copies that were brightened by up to 30 % differ by less; red and orange differ by 0.5, opposite colours by 2.
MOST_COLOUR_DIFFERENCE = 0.35
# The first stage only has to keep all copies.
LEAST_COARSE = 0.85
# Candidates per query that are compared closely.
MOST_CANDIDATES = 32
# Pairs of feature vectors (of length 1) above this cosine are near duplicates; depends on the model.
LEAST_FEATURE = 0.95
_QUERY_BLOCK, _BASE_BLOCK, _PAIR_BLOCK = 512, 16_384, 128


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Pairs: query `queries[i]` resembles `others[i]` by `similarity[i]`, best first."""

    queries: NDArray[np.int64]
    others: NDArray[np.int64]
    similarity: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.queries)

    def __post_init__(self) -> None:
        assert len(self.queries) == len(self.others) == len(self.similarity)


def near_pairs(
    queries: NDArray[np.uint8],
    base: NDArray[np.uint8] | None = None,
    *,
    colours: NDArray[np.int8] | None = None,
    base_colours: NDArray[np.int8] | None = None,
    is_shifted: bool = True,
    is_mirrored: bool = False,
) -> Pairs:
    """Find copies of the thumbnails `queries` (Q, 32, 32) in `base` (N, 32, 32), or among themselves.

    `colours` (Q, 4, 4, 2) and `base_colours` (N, 4, 4, 2) exclude pairs of the same shape in another colour; without
    them only grey is compared. Among themselves each pair occurs once, with the earlier image as the query.
    `is_shifted=False` skips the shifted queries of the first stage: nine times as fast, for copies that were not
    shifted. `is_mirrored` also finds horizontally flipped copies.
    """
    is_within = base is None
    targets = queries if base is None else base
    with torch.inference_mode():
        described = _in_blocks(targets)
        blocks_of_pairs = []
        for mirrored in (False, True) if is_mirrored else (False,):
            asked = _Mirror(queries) if mirrored else queries
            for start in track(range(0, len(queries), _QUERY_BLOCK), "Searching for copies"):
                block = np.ascontiguousarray(asked[start : start + _QUERY_BLOCK])
                views = shifted_descriptors(block) if is_shifted else [descriptors(block)]
                rows, columns, _ = _candidates(
                    [torch.from_numpy(view) for view in views],
                    described,
                    least=LEAST_COARSE,
                    first=start if is_within else None,
                )
                blocks_of_pairs.append(_verified(block, targets, rows, columns, start=start))
    pairs = _sorted_pairs(blocks_of_pairs)
    if colours is None:
        return pairs
    return _of_equal_colours(pairs, colours, colours if base_colours is None else base_colours)


def feature_pairs(
    queries: NDArray[np.float32], base: NDArray[np.float32] | None = None, *, least: float = LEAST_FEATURE
) -> Pairs:
    """Find pairs of features (Q, D) and (N, D), or (Q, D) among themselves, with cosine `least` or more."""
    targets = queries if base is None else base
    if queries.ndim != 2 or targets.ndim != 2 or queries.shape[1] != targets.shape[1]:
        raise ConfigError(
            f"features must be (Q, D) and (N, D) with one D, got {queries.shape} and {targets.shape}"
        )
    with torch.inference_mode():
        described = torch.nn.functional.normalize(torch.from_numpy(targets).float(), dim=1)
        blocks_of_pairs = []
        for start in track(range(0, len(queries), _QUERY_BLOCK), "Comparing features"):
            block = torch.from_numpy(queries[start : start + _QUERY_BLOCK]).float()
            rows, columns, cosine = _candidates(
                [torch.nn.functional.normalize(block, dim=1)],
                described,
                least=least,
                first=start if base is None else None,
            )
            blocks_of_pairs.append((rows.numpy() + start, columns.numpy(), cosine.numpy()))
    return _sorted_pairs(blocks_of_pairs)


def _of_equal_colours(pairs: Pairs, colours: NDArray[np.int8], base_colours: NDArray[np.int8]) -> Pairs:
    """Keep the pairs whose colours agree, too; a mirrored copy has the same mean colour."""
    difference = colour_difference(colours[pairs.queries], base_colours[pairs.others])
    is_kept = difference <= MOST_COLOUR_DIFFERENCE
    return Pairs(
        queries=pairs.queries[is_kept], others=pairs.others[is_kept], similarity=pairs.similarity[is_kept]
    )


class _Mirror:
    """Thumbnails flipped horizontally, block by block on access."""

    def __init__(self, thumbnails: NDArray[np.uint8]) -> None:
        self._thumbnails = thumbnails

    def __getitem__(self, block: slice) -> NDArray[np.uint8]:
        return self._thumbnails[block, :, ::-1]


def _in_blocks(thumbnails: NDArray[np.uint8]) -> Tensor:
    """Describe thumbnails that may be on disk, without loading them all: (N, 63)."""
    blocks = [
        torch.from_numpy(descriptors(thumbnails[start : start + _BASE_BLOCK]))
        for start in range(0, len(thumbnails), _BASE_BLOCK)
    ]
    return torch.cat(blocks) if blocks else torch.zeros(0, 63)


def _candidates(
    views: Sequence[Tensor], base: Tensor, *, least: float, first: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Pick, for each query, the most similar of the base (best of its views): rows, columns, similarity.

    With `first` (the index of the first query in the base) only later images are compared.
    """
    num_queries = len(views[0])
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    begin = 0 if first is None else first
    for start in range(begin, len(base), _BASE_BLOCK):
        block = base[start : start + _BASE_BLOCK].T
        scores = views[0] @ block  # (Q, block)
        for view in views[1:]:
            torch.maximum(scores, view @ block, out=scores)
        if first is not None and start < first + num_queries:
            # An image is not its own copy, and a pair of two queries occurs once.
            own = torch.arange(first, first + num_queries)[:, None]
            scores.masked_fill_(torch.arange(start, start + scores.shape[1])[None] <= own, -1.0)
        passed = scores >= least
        crowded = (passed.sum(1) > MOST_CANDIDATES).nonzero()  # (C, 1)
        if len(crowded):  # memory stays bounded even if all images are similar
            best = scores[crowded[:, 0]].topk(MOST_CANDIDATES, dim=1).indices
            passed[crowded[:, 0]] = False
            passed[crowded, best] = True
        rows, columns = passed.nonzero(as_tuple=True)
        kept.append((rows, columns + start, scores[rows, columns]))
    if not kept:
        return torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long), torch.zeros(0)
    rows, columns, similarity = (torch.cat(parts) for parts in zip(*kept, strict=True))
    return _best_of_each(rows, columns, similarity)


def _best_of_each(rows: Tensor, columns: Tensor, similarity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keep at most MOST_CANDIDATES per row, the most similar ones."""
    order = similarity.argsort(descending=True, stable=True)
    order = order[rows[order].argsort(stable=True)]  # by row, the best of each row first
    rows = rows[order]
    is_kept = torch.arange(len(rows)) - torch.searchsorted(rows, rows) < MOST_CANDIDATES
    return rows[is_kept], columns[order[is_kept]], similarity[order[is_kept]]


def _verified(
    block: NDArray[np.uint8], base: NDArray[np.uint8], rows: Tensor, columns: Tensor, *, start: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    places, others = rows.numpy(), columns.numpy()
    grey, detail = np.zeros((2, len(places)), dtype=np.float32)
    for begin in range(0, len(places), _PAIR_BLOCK):
        part = slice(begin, begin + _PAIR_BLOCK)
        grey[part], detail[part] = aligned_similarity(block[places[part]], base[others[part]])
    is_kept = (grey >= LEAST_GREY) & (detail >= LEAST_DETAIL)
    doubtful = np.flatnonzero(~is_kept & (grey >= _DOUBTFUL) & (detail >= _DOUBTFUL))
    for begin in range(0, len(doubtful), _PAIR_BLOCK):
        some = doubtful[begin : begin + _PAIR_BLOCK]
        fine_grey, fine_detail = finely_aligned_similarity(block[places[some]], base[others[some]])
        is_kept[some] = (fine_grey >= LEAST_GREY) & (fine_detail >= LEAST_BLURRED_DETAIL)
        detail[some] = fine_detail
    return places[is_kept] + start, others[is_kept], detail[is_kept]


def _sorted_pairs(blocks_of_pairs: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]) -> Pairs:
    if not blocks_of_pairs:
        nothing = np.zeros(0, dtype=np.int64)
        return Pairs(queries=nothing, others=nothing, similarity=np.zeros(0, dtype=np.float32))
    queries, others, similarity = (np.concatenate(parts) for parts in zip(*blocks_of_pairs, strict=True))
    order = np.argsort(-similarity, kind="stable")
    # A pair that matches both as it is and mirrored counts once, with the higher similarity.
    key = queries[order] * (int(others.max(initial=0)) + 1) + others[order]
    _, first = np.unique(key, return_index=True)
    order = order[np.sort(first)]
    return Pairs(
        queries=queries[order].astype(np.int64),
        others=others[order].astype(np.int64),
        similarity=similarity[order].astype(np.float32),
    )
