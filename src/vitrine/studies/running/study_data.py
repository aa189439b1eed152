"""The data of a study: small sets as arrays of the study's sizes, made once and mapped by every process."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vitrine.errors import DataError

if TYPE_CHECKING:
    from vitrine.data.sources.source import Source

CHANNELS = 3
_READ_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """One data set, known to every process of a study."""

    address: str
    folder: Path
    """Where its arrays are."""
    classes: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def test_split(self) -> str:
        """The split that results are measured on."""
        return "test" if "test" in self.counts else "val"


def look_at(address: str, *, folder: Path) -> StudyData:
    """Open a data set and describe it; nothing is read yet."""
    from vitrine.data.sources.opening import open_splits

    splits = open_splits(address)
    train = splits["train"]
    if train.is_multi_label or not train.is_labelled:
        raise DataError(
            f"a study needs one label an image; {address} has {'several' if train.classes else 'none'}"
        )
    if "val" not in splits and "test" not in splits:
        raise DataError(f"{address} has no images to test on; give it a val or test split")
    prints = "".join(splits[name].fingerprint() for name in sorted(splits))
    fingerprint = hashlib.blake2b(prints.encode(), digest_size=8).hexdigest()
    return StudyData(
        address=address,
        folder=folder / fingerprint,
        classes=tuple(train.classes),
        counts={name: len(source) for name, source in splits.items()},
        fingerprint=fingerprint,
    )


def make_arrays(data: StudyData, sizes: set[int], *, workers: int) -> list[str]:
    """Write every split at every size as one array, where it is small enough; return what there is to say."""
    from vitrine.data.sources.opening import open_splits
    from vitrine.runtime.progress import track

    todo = [
        (name, size)
        for size in sorted(sizes)
        for name in data.counts
        if fits(data, size) and not labels_file(data, name, size).exists()
    ]
    if not todo:
        return []
    splits, notes = open_splits(data.address), []
    for name, size in track(todo, "Reading images"):
        unreadable = write_array(data, name, size, splits[name], workers=workers)
        if unreadable:
            notes.append(f"{unreadable} images of {name} of {data.address} cannot be read and are left out")
    return notes


def fits(data: StudyData, size: int) -> bool:
    """Whether a set is small enough to be held as one array."""
    from vitrine.data.loading.resident import LARGEST_BYTES

    return max(data.counts.values()) * size * size * CHANNELS <= LARGEST_BYTES


def images_file(data: StudyData, split: str, size: int) -> Path:
    """Name the file of a split's images."""
    return data.folder / f"{split}-{size}.npy"


def labels_file(data: StudyData, split: str, size: int) -> Path:
    """Name the file of a split's labels, written last."""
    return data.folder / f"{split}-{size}-labels.npy"


def write_array(data: StudyData, split: str, size: int, source: "Source", *, workers: int) -> int:
    """Squash every image of a split to a square and write them as one array; return how many cannot be read."""
    import numpy as np

    from vitrine.data.loading.loader import Loader
    from vitrine.data.loading.resident import pixels_of
    from vitrine.data.preparing.preprocess import Preprocess
    from vitrine.runtime.files import write_atomically

    held = pixels_of(source)
    if held is not None and held.shape[1:] == (size, size, CHANNELS):
        rows = getattr(source, "indices", slice(None))
        images, labels, num_bad = held[rows], source.labels, 0
    else:
        images, bad = np.empty((len(source), size, size, CHANNELS), dtype=np.uint8), []
        with Loader(
            source, Preprocess(size=(size, size)), batch_size=_READ_BATCH, num_workers=workers,
            worker_kind="processes" if workers > 2 else "threads", keep_going=True,
        ) as loader:  # fmt: skip
            for batch in loader.evaluation_batches():
                images[batch.rows.indices] = batch.images.permute(0, 2, 3, 1).numpy()
                bad += [int(batch.rows.indices[row]) for row in batch.failures]
        readable = np.setdiff1d(np.arange(len(source)), bad)
        images, labels = images[readable] if bad else images, source.labels[readable]
        num_bad = len(bad)
    for file, values in ((images_file, images), (labels_file, labels)):
        with write_atomically(file(data, split, size)) as opened:
            np.save(opened, np.ascontiguousarray(values), allow_pickle=False)
    return num_bad


_OPENED: "dict[tuple[Path, int], dict[str, Source]]" = {}


def splits_of(data: StudyData, size: int) -> "dict[str, Source]":
    """Open a set at a size, once a process: mapped arrays, or the set itself where it is large."""
    import numpy as np

    from vitrine.data.sources.in_memory import ArraySource
    from vitrine.data.sources.opening import open_splits

    if (data.folder, size) not in _OPENED:
        found: dict[str, Source] = {}
        if not fits(data, size):
            found = open_splits(data.address)
        for split in data.counts if not found else ():
            found[split] = ArraySource(
                np.load(images_file(data, split, size), mmap_mode="c", allow_pickle=False),
                labels=np.load(labels_file(data, split, size), allow_pickle=False),
                classes=data.classes,
                address=data.address,
                root=None,
                prefix=f"{split}/",
            )
        _OPENED[data.folder, size] = found
    return _OPENED[data.folder, size]


def part_of(source: "Source", count: int | None, *, seed: int) -> "Source":
    """Draw `count` images at random; with one seed, a smaller part lies within a larger one."""
    import numpy as np

    from vitrine.data.sources.source import Subset

    if count is None or count >= len(source):
        return source
    order = np.random.default_rng(seed).permutation(len(source))
    return Subset(source, np.sort(order[:count]))
