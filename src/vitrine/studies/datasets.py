"""The data of a study: small sets become arrays at the study's sizes, memory-mapped by every process."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitrine.data.loading.loader import Loader
from vitrine.data.loading.resident import LARGEST_BYTES, pixels_of
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.in_memory import ArraySource
from vitrine.data.sources.opening import open_splits
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import DataError
from vitrine.runtime.array_file import save_array
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import track
from vitrine.spelling import counted

CHANNELS = 3
_READ_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """One data set of a study, as every process receives it."""

    address: str
    folder: Path
    """Folder of its arrays."""
    classes: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def test_split(self) -> str:
        """The split for the results."""
        return "test" if "test" in self.counts else "val"


def describe_data(address: str, *, folder: Path) -> StudyData:
    """Open a data set and describe it; no image is read yet."""

    splits = open_splits(address)
    train = splits["train"]
    if train.is_multi_label or not train.is_labelled:
        raise DataError(
            f"a study needs one label per image; {address} has {'several' if train.classes else 'none'}"
        )
    if "val" not in splits and "test" not in splits:
        raise DataError(
            f"{address} has no validation or test split; a study needs one to measure accuracy on"
        )
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
    """Write every split of a small set, at every size, as one array; return notes on images that cannot be read."""

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
            notes.append(
                f"Skipped {counted(unreadable, 'image')} of {name} of {data.address}: cannot be read"
            )
    return notes


def fits(data: StudyData, size: int) -> bool:
    """Whether a set is small enough for one array in memory."""

    return max(data.counts.values()) * size * size * CHANNELS <= LARGEST_BYTES


def images_file(data: StudyData, split: str, size: int) -> Path:
    """Return the file of a split's images."""
    return data.folder / f"{split}-{size}.npy"


def labels_file(data: StudyData, split: str, size: int) -> Path:
    """Return the file of a split's labels, which is written last."""
    return data.folder / f"{split}-{size}-labels.npy"


def write_array(data: StudyData, split: str, size: int, source: Source, *, workers: int) -> int:
    """Resize every image of a split to a square and write one array; return how many cannot be read."""

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
            save_array(opened, np.ascontiguousarray(values))
    return num_bad


_OPENED: dict[tuple[Path, int], dict[str, Source]] = {}


def splits_of(data: StudyData, size: int) -> dict[str, Source]:
    """Open a set at a size, once per process: memory-mapped arrays, or the set itself if it is large."""

    if (data.folder, size) not in _OPENED:
        splits: dict[str, Source] = {}
        if not fits(data, size):
            splits = open_splits(data.address)
        for split in data.counts if not splits else ():
            splits[split] = ArraySource(
                np.load(images_file(data, split, size), mmap_mode="c", allow_pickle=False),
                labels=np.load(labels_file(data, split, size), allow_pickle=False),
                classes=data.classes,
                address=data.address,
                root=None,
                prefix=f"{split}/",
            )
        _OPENED[data.folder, size] = splits
    return _OPENED[data.folder, size]


def part_of(source: Source, count: int | None, *, seed: int) -> Source:
    """Draw `count` images at random; with the same seed, a smaller part is a subset of a larger one."""

    if count is None or count >= len(source):
        return source
    order = np.random.default_rng(seed).permutation(len(source))
    return Subset(source, np.sort(order[:count]))
