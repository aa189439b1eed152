"""ImageNet-ReaL (arXiv:2006.07159): for each validation image, every label that annotators accepted."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.file_list import require_path
from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.runtime.files import parse_json

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")
RealLabels = list[list[int]]


def read_real(file: Path, source: Source) -> RealLabels:
    """Read `real.json` and return its lists in the order of the source.

    The file is in the order of the validation files; a source that lists them by class is matched by the number in
    each name, or by the sorted names if there is none.
    """
    file = require_path(file)
    try:
        lists = parse_json(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{file} is not a JSON file of label lists: {error}") from error
    if not isinstance(lists, list) or not all(_is_label_list(item) for item in lists):
        raise DataError(f"{file} must hold one list of label numbers per image, as ReaL's real.json does")
    if len(lists) != len(source):
        raise DataError(
            f"{file} has labels for {len(lists):,} images, but {source.address} has {len(source):,}; "
            "ReaL needs the whole validation set of ImageNet, 50,000 images"
        )
    return [lists[place] for place in file_order(source)]


def file_order(source: Source) -> list[int]:
    """Return for each example the place of its file in the sorted list of validation files."""
    names = [PurePosixPath(source.name(index)).name for index in range(len(source))]
    numbers = [_NUMBER.search(name) for name in names]
    keys: list[Any] = [int(match.group(1)) for match in numbers if match] if all(numbers) else names
    if len(set(keys)) != len(keys):
        twice = next(
            name for name, count in zip(*np.unique(names, return_counts=True), strict=True) if count > 1
        )
        raise DataError(
            f"{source.address} has two files called {twice}, so the order of real.json is unclear"
        )
    place = {key: rank for rank, key in enumerate(sorted(keys))}
    return [place[key] for key in keys]


def real_correct(
    predicted: NDArray[Any], labels: Sequence[Sequence[int]]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which images count (their list is not empty) and which of those are correct: two (N,) of bool."""
    if len(predicted) != len(labels):
        raise DataError(f"{len(predicted):,} predictions do not match {len(labels):,} lists of labels")
    counts = np.array([bool(len(accepted)) for accepted in labels])
    right = np.array([int(k) in accepted for k, accepted in zip(predicted, labels, strict=True)], dtype=bool)
    return counts, right & counts


def _is_label_list(item: Any) -> bool:
    return isinstance(item, list) and all(type(label) is int and label >= 0 for label in item)
