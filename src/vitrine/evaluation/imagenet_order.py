"""Which output of a model is which of ImageNet's 1,000 classes, whatever its names for them.

Models know the classes as WordNet ids ("n01440764"), as all synonyms ("tench, Tinca tinca"), as the first of them
("tench"), or without names in ImageNet's standard order, that of the WordNet ids.
"""

import re
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitrine.errors import DataError

NUM_CLASSES = 1000
# Not an output of the model.
LACKING = -1
_WORDNET_ID = re.compile(r"n\d{8}")
# Of ImageNet's 1,000 WordNet ids, sorted, one per line. Other choices of 1,000 classes from ImageNet-21k exist.
_CRC32_OF_IDS = 0x0642A78E


def places_of_imagenet(
    classes: Sequence[str] | None, names: Sequence[str], *, num_outputs: int | None
) -> NDArray[np.int64]:
    """Return the model's output for each class of `names` in standard order (1000,); -1 for a class that it lacks.

    `classes` are the model's own names; without any, its outputs are taken to be in standard order. A model without
    ImageNet's classes is refused.
    """
    if num_outputs != NUM_CLASSES:
        given = "no classification head" if num_outputs is None else f"{num_outputs:,} classes"
        raise DataError(
            f"ObjectNet needs a model with ImageNet's {NUM_CLASSES:,} classes, and this one has {given}"
        )
    if classes is None:
        return np.arange(NUM_CLASSES)
    places = _by_id(classes) if all(map(_WORDNET_ID.fullmatch, classes)) else _by_name(classes, names)
    if (places == LACKING).all():
        raise DataError(
            f"ObjectNet needs a model with ImageNet's {NUM_CLASSES:,} classes, and this one's have other names, such "
            f"as {classes[0]}"
        )
    return places


def _by_id(classes: Sequence[str]) -> NDArray[np.int64]:
    if zlib.crc32("\n".join(sorted(classes)).encode()) != _CRC32_OF_IDS:
        return np.full(NUM_CLASSES, LACKING)
    return np.argsort(np.array(classes))


def _by_name(classes: Sequence[str], names: Sequence[str]) -> NDArray[np.int64]:
    """Match whole names, then first synonyms; a name that two classes share, as `crane` is, matches neither."""
    whole = _unique([_plain(name) for name in classes])
    first = _unique([_first(name) for name in classes])
    return np.array([whole.get(_plain(name), first.get(_first(name), LACKING)) for name in names])


def _unique(names: Sequence[str]) -> dict[str, int]:
    counts = Counter(names)
    return {name: place for place, name in enumerate(names) if counts[name] == 1}


def _plain(name: str) -> str:
    return name.replace("_", " ").strip().lower()


def _first(name: str) -> str:
    return _plain(name.partition(",")[0])
