"""Hold out part of a set for validation: seeded, stratified, with exact duplicates kept together.

The choice depends only on the seed, the names and the contents, not on the order of the files: adding an image moves
no other image between the splits, except where the rounded fraction of a class grows by one.
"""

import csv
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from vitrine.data.sources.grouping import Indices, merged
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError
from vitrine.runtime.files import write_atomically
from vitrine.runtime.output_folder import is_inside
from vitrine.runtime.places import is_remote
from vitrine.runtime.progress import track
from vitrine.spelling import printable

Grouping: TypeAlias = Callable[[Source], Indices]
"""Returns for each image of a source the first image of its group."""


def held_out_split(
    source: Source, *, seed: int = 0, val_fraction: float = 0.1, groups: Grouping | None = None
) -> dict[str, Indices]:
    """Split into `train` and `val`: the same fraction of each class, at least one image of each if possible.

    A class with one image keeps it in `train`. Identical files go to the same split, even if their labels differ, and
    so do images of one group: `groups` returns for each image the first one of its group.
    """
    if not 0 < val_fraction < 1:
        raise ConfigError(
            f"the fraction to hold out must be between 0 and 1, got {val_fraction}; 0.1 holds out 10 %"
        )
    first = source.labels[:, 0] if source.is_multi_label else source.labels
    group = duplicate_groups(source)
    if groups is not None:
        group = merged([group, groups(source)])
    is_val = np.zeros(len(source), dtype=bool)
    # A group of duplicates is drawn once, with the class of its first image.
    heads = np.flatnonzero(group == np.arange(len(source)))
    group_sizes = np.bincount(group, minlength=len(source))
    keys = np.array([_key(seed, _name_inside(source, int(head))) for head in heads], dtype=np.uint64)
    for label in np.unique(first[heads]):
        of_class = heads[first[heads] == label]
        order = of_class[np.argsort(keys[first[heads] == label], kind="stable")]
        is_val[order[_take(group_sizes[order], val_fraction)]] = True
    is_val = is_val[group]
    return {"train": np.flatnonzero(~is_val), "val": np.flatnonzero(is_val)}


def fold_numbers(source: Source, *, folds: int, seed: int = 0, groups: Indices | None = None) -> Indices:
    """Divide a source into folds of equal size, each with its share of every class (N,); groups are not divided."""
    group = np.arange(len(source)) if groups is None else groups
    first = source.labels[:, 0] if source.is_multi_label else source.labels
    heads = np.flatnonzero(group == np.arange(len(source)))
    sizes = np.bincount(group, minlength=len(source))
    keys = np.array([_key(seed, _name_inside(source, int(head))) for head in heads], dtype=np.uint64)
    fold_of = np.zeros(len(source), dtype=np.int64)
    total = np.zeros(folds, dtype=np.int64)
    for label in np.unique(first[heads]):
        of_class = heads[first[heads] == label]
        order = of_class[np.argsort(keys[first[heads] == label], kind="stable")]
        own = np.zeros(folds, dtype=np.int64)
        for head in sorted(order.tolist(), key=lambda head: -sizes[head]):  # the largest groups first
            fold = min(range(folds), key=lambda number: (own[number], total[number]))
            fold_of[head] = fold
            own[fold] += sizes[head]
            total[fold] += sizes[head]
    return fold_of[group]


def stored_split(
    source: Source,
    split_file: Path,
    *,
    seed: int = 0,
    val_fraction: float = 0.1,
    groups: Grouping | None = None,
) -> dict[str, Indices]:
    """Read the split from `split_file`, or create one and write it there; never inside the data set."""
    if split_file.exists():
        return read_split(source, split_file)
    split = held_out_split(source, seed=seed, val_fraction=val_fraction, groups=groups)
    write_split(source, split_file, split)
    return split


def write_split(source: Source, split_file: Path, split: dict[str, Indices]) -> None:
    """Write `path,label,split`, one row per image, in the order of the source."""
    if source.root is not None and is_inside(split_file, source.root):
        raise ConfigError(
            f"{split_file} is inside the data set {source.root}, where nothing is ever written; "
            "choose a file outside it"
        )
    names = np.empty(len(source), dtype=object)
    for name, indices in split.items():
        names[indices] = name
    with write_atomically(split_file, mode="w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path", "label", "split"])
        for index in range(len(source)):
            label = source.label(index)
            labels = label if isinstance(label, tuple) else (label,)
            words = ";".join(source.classes[number] for number in labels if number >= 0)
            writer.writerow([source.name(index), words, names[index]])


def read_split(source: Source, split_file: Path) -> dict[str, Indices]:
    """Read which image is in which split; every image of the source must be listed and exist."""
    with split_file.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        reader = csv.DictReader(file)
        if not {"path", "split"} <= set(reader.fieldnames or ()):
            raise DataError(
                f"{split_file} is not a split file: its header must have the columns path and split, got "
                f"{', '.join(reader.fieldnames or ()) or 'an empty file'}"
            )
        rows = {row["path"]: row["split"] for row in reader}
    sides: dict[str, list[int]] = {"train": [], "val": []}
    for index in range(len(source)):
        side = rows.pop(source.name(index), None)
        if side is None:
            raise DataError(
                f"{printable(source.name(index))} is not in {split_file}: the data has changed since that "
                "split was created; create a new one in another file"
            )
        sides.setdefault(side, []).append(index)
    if rows:
        raise DataError(
            f"{split_file} names {printable(next(iter(rows)))}, which is no longer in the data set; "
            "create a new split in another file"
        )
    return {name: np.array(indices, dtype=np.int64) for name, indices in sides.items()}


def duplicate_groups(source: Source) -> Indices:
    """Return for each image the index of the first image with the same bytes, which may be itself.

    Only images whose size occurs twice are read.
    """
    sizes = np.fromiter((source.size(index) for index in range(len(source))), dtype=np.int64)
    group = np.arange(len(source))
    _, inverse, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    suspects = np.flatnonzero((counts[inverse] > 1) & (sizes > 0))
    seen: dict[bytes, int] = {}
    for index in track(suspects.tolist(), "Searching for identical files"):
        try:
            data = source.read(index).data
        except DataError:
            continue  # an unreadable file is not a duplicate; `check` reports it
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        group[index] = seen.setdefault(hashlib.blake2b(raw, digest_size=16).digest(), index)
    return group


def _take(sizes: Indices, fraction: float) -> Indices:
    """Choose groups, in order, until their images make up the fraction; at least one group remains."""
    wanted = max(1, round(float(sizes.sum()) * fraction))
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    chosen = np.flatnonzero(before + sizes <= wanted)
    if len(chosen) == 0 and len(sizes) > 1:  # all groups are larger than the fraction: take the smallest
        chosen = np.array([int(np.argmin(sizes))])
    return chosen[: len(sizes) - 1]


def _name_inside(source: Source, index: int) -> str:
    """Return the name of an image within its data set: a copy of the data at an address is split in the same way."""
    name = source.name(index)
    return name.removeprefix(f"{source.address.rstrip('/')}/") if is_remote(source.address) else name


def _key(seed: int, name: str) -> int:
    raw = f"{seed}\0{name}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")
