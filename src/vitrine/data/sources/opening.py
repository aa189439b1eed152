"""Open any data set by its address: the registry of kinds, splits, and checks of the class map.

A kind is a module or object with `recognises(address)` and `open_all(address)`, which returns the splits by name; a
set that is not split has the one split `all`. A new kind is one file and one line: `register_source(name, kind)`.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from vitrine.data.decoding.annotation import DataTask
from vitrine.data.decoding.file_kind import VIDEO_SUFFIXES, frames_advice
from vitrine.data.sources import (
    box_sets,
    cifar,
    class_folders,
    generated,
    hub,
    idx,
    instance_sets,
    manifest,
    mask_sets,
    parquet,
    remote_files,
    shards,
)
from vitrine.data.sources.builtin import BuiltInSets
from vitrine.data.sources.file_list import FileList, require_path
from vitrine.data.sources.folder_walk import list_images, subfolders
from vitrine.data.sources.labels import match_classes
from vitrine.data.sources.source import ALL, NO_LABEL, ConcatSource, Source, Subset
from vitrine.data.sources.splitting import Grouping, held_out_split, stored_split
from vitrine.data.sources.tables import SPREADSHEETS
from vitrine.data.sources.vtab import lists
from vitrine.errors import ConfigError, DataError, TryOption, TryVerb
from vitrine.runtime.progress import notice, quiet
from vitrine.spelling import near_match, printable, some_of

COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
ARCHIVES = (".zip", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")


class Kind(Protocol):
    """A kind of data set: a module of this folder, or any object with these functions."""

    def recognises(self, address: str) -> bool:
        """Whether `address` is of this kind, by its form or by the files there."""

    def open_all(self, address: str) -> dict[str, Source]:
        """Open every split of the set at `address`."""


# In the order in which they are asked: class folders take any folder, so they come last.
_KINDS: dict[str, Kind] = {
    "generated": generated,
    "hub": hub,
    "masks": mask_sets,
    "instances": instance_sets,
    "boxes": box_sets,
    "builtin": BuiltInSets(lambda folder: open_kind(folder)),  # noqa: PLW0108 (defined below)
    "remote_files": remote_files,
    "shards": shards,
    "parquet": parquet,
    "manifest": manifest,
    "vtab": lists,
    "cifar": cifar,
    "idx": idx,
    "class_folders": class_folders,
}


def register_source(name: str, kind: Kind) -> None:
    """Add a kind of data set from outside the package; it is asked before all others."""
    if name in _KINDS:
        raise ConfigError(f"a kind of data set is already registered as {name!r}; choose another name")
    known = dict(_KINDS)
    _KINDS.clear()
    _KINDS.update({name: kind, **known})


def open_source(
    address: str | Path,
    *,
    split: str = ALL,
    seed: int = 0,
    val_fraction: float | None = None,
    split_file: Path | None = None,
    classes: Sequence[str] | None = None,
    allow_empty_class: bool = False,
    is_labelled: bool = True,
) -> Source:
    """Open one split, or all, of the data set at `address`: a folder, a file, a built-in name or a URL.

    Equal to `open_splits(...)[split]`. With `classes` the labels are numbered by that list, matched by name.
    With `is_labelled=False`, list every image below a folder, without labels.
    """
    if not is_labelled:
        return open_loose(address)
    if split == ALL:
        splits_on_disk = open_kind(address)
        if classes is None and not allow_empty_class:
            skip_empty_classes(splits_on_disk)
        whole = _joined(
            [splits_on_disk[name] for name in splits_on_disk if name in (ALL, "train", "val", "test")]
        )
        if classes is not None:
            return match_classes(whole, classes)
        return check_classes({ALL: whole}, allow_empty_class=allow_empty_class)[ALL]
    splits = open_splits(
        address,
        seed=seed,
        val_fraction=val_fraction,
        split_file=split_file,
        allow_empty_class=allow_empty_class or classes is not None,
    )
    if split not in splits:
        close = near_match(split, splits)
        hint = f"; did you mean {close}?" if close else ""
        raise DataError(
            f"{printable(str(address))} has no split {split}, only {', '.join(splits)}{hint}",
            suggestions=[close] if close else [],
        )
    return splits[split] if classes is None else match_classes(splits[split], classes)


def open_splits(
    address: str | Path,
    *,
    seed: int = 0,
    val_fraction: float | None = None,
    split_file: Path | None = None,
    allow_empty_class: bool = False,
    is_labelled: bool = True,
    groups: Grouping | None = None,
) -> dict[str, Source]:
    """Open all splits of the data set at `address`, with one class map, `train` first.

    A set without `val` gets one: a seeded, stratified part of `train`, or of everything, with exact duplicates kept
    together. `val_fraction` is by default 0.1, or the paper's value for this set; 0 holds out nothing. With
    `split_file` the split is read from there, or created and written there. With `is_labelled=False` a folder of
    loose images is accepted too; a set with labels keeps them. `groups` keeps images of one group on one side.
    """
    splits = open_kind(address) if is_labelled or not is_loose(address) else {ALL: open_loose(address)}
    if not allow_empty_class:
        skip_empty_classes(splits)
    base = splits.pop(ALL, None) or splits.get("train")
    if base is not None and "val" not in splits:
        fraction = base.val_fraction if val_fraction is None else val_fraction
        splits = _hold_out(base, fraction, seed=seed, split_file=split_file, groups=groups) | {
            name: source for name, source in splits.items() if name != "train"
        }
    return check_classes(splits, allow_empty_class=allow_empty_class)


def is_loose(address: str | Path) -> bool:
    """Whether `address` is a folder of images without class folders and without labels in another form."""
    path = Path(address)
    is_set = any(kind.recognises(str(path)) for kind in _KINDS.values() if kind is not class_folders)
    return path.is_dir() and not is_set and not subfolders(path) and next(list_images(path), None) is not None


def open_loose(address: str | Path) -> Source:
    """List every image below a folder or an address, or in shards or Parquet; labels are not needed."""
    text = str(address)
    if remote_files.recognises(text):
        return remote_files.open_loose(text)
    for kind in (shards, parquet):
        if kind.recognises(text):
            return _joined(list(kind.open_all(text, needs_labels=False).values()))
    return class_folders.open_unlabelled(text)


def list_splits(address: str | Path) -> tuple[str, ...]:
    """Return the names of the splits that the set itself has; empty if it is not split."""
    with quiet():  # notices are sent when it is opened
        return tuple(name for name in open_kind(address) if name != ALL)


def open_kind(address: str | Path) -> dict[str, Source]:
    """Open the set as it is on disk, without holding images out and without checking its classes."""
    text = str(address)
    if Path(text).is_dir():
        _refuse_compressed_shards(Path(text))
    for kind in _KINDS.values():
        if kind.recognises(text):
            return kind.open_all(text)
    path = require_path(Path(text))
    _refuse_other_file(path)
    raise DataError(
        f"{printable(str(path))} is not a data set; pass a folder with one folder per class, "
        "a .csv, .jsonl, .parquet or .tar file, or a built-in name"
    )


def task_of(address: str | Path) -> DataTask:
    """Return what a set is labelled with, by its layout; nothing but its folder is read."""
    for kind in _KINDS.values():
        if kind.recognises(str(address)):
            task: DataTask = getattr(kind, "TASK", "classes")
            return task
    return "classes"


def read_as(address: str, task: DataTask) -> str:
    """Return the address by which a set is read with labels of a kind: its own, or one with the kind in front."""
    if task_of(address) == task:
        return address
    for kind in (mask_sets, instance_sets, box_sets):
        address = address.removeprefix(kind.PREFIX)
    return f"{task}:{Path(address).absolute()}"


def _refuse_other_file(path: Path) -> None:
    """Refuse a compressed file and a video, with what to do about it."""
    if path.name.lower().endswith(COMPRESSED_TARS):
        raise DataError(
            f"{printable(str(path))} is a compressed tar file; images in a tar are read by their position, which "
            "compression hides: decompress it (gunzip) or unpack it"
        )
    if path.suffix.lower() in VIDEO_SUFFIXES:
        raise DataError(f"{printable(str(path))} is a video; {frames_advice(str(path))}")
    if path.suffix.lower() in SPREADSHEETS:
        raise DataError(f"{printable(str(path))} is a spreadsheet; save it as CSV and pass that file")
    if path.suffix.lower() in ARCHIVES:
        raise DataError(f"{printable(str(path))} is an archive; unpack it and pass the folder")


def _refuse_compressed_shards(folder: Path) -> None:
    """Refuse a folder of nothing but compressed shards; beside other data they do not matter."""
    names = [entry.name for entry in os.scandir(folder) if not entry.name.startswith(".")]
    tars = sorted(name for name in names if name.lower().endswith(COMPRESSED_TARS))
    if tars and len(tars) == len([name for name in names if not name.endswith((".json", ".txt", ".md"))]):
        _refuse_other_file(folder / tars[0])


def skip_empty_classes(splits: Mapping[str, Source]) -> None:
    """Remove classes without an image in any split from the class map of files, with a notice.

    The sources were just opened, so nobody has read their labels yet.
    """
    first = next(iter(splits.values()))
    used = np.sum([source.counts() for source in splits.values()], axis=0) > 0
    if used.all() or not used.any() or not all(isinstance(source, FileList) for source in splits.values()):
        return
    empty = [name for name, is_used in zip(first.classes, used, strict=True) if not is_used]
    notice(
        f"Skipped {some_of(empty)}: no images; add some to learn the class",
        advice=[TryOption("allow_empty_class", "to keep it as a class", True)],
    )
    kept = tuple(name for name, is_used in zip(first.classes, used, strict=True) if is_used)
    table = np.append(np.cumsum(used) - 1, NO_LABEL).astype(np.int32)
    for source in splits.values():
        source.classes, source.labels = kept, table[source.labels]  # -1 selects the last entry: no label


def check_classes(splits: Mapping[str, Source], *, allow_empty_class: bool = False) -> dict[str, Source]:
    """Refuse a set whose first split lacks images of some class."""
    sources = dict(splits)
    names = list(sources)
    first = sources[names[0]]
    if first.has_fixed_classes or not first.is_labelled:
        return sources
    if not allow_empty_class and bool((first.counts() == 0).any()):
        empty = [name for name, count in zip(first.classes, first.counts(), strict=True) if count == 0]
        raise DataError(
            f"{names[0]} has no images of {some_of(empty)}; add some or remove the class",
            advice=[
                TryOption("allow_empty_class", "to continue without them", True),
                TryVerb("check", (first.address,), "to see the counts of all classes"),
            ],
        )
    return sources


def _hold_out(
    base: Source, fraction: float, *, seed: int, split_file: Path | None, groups: Grouping | None
) -> dict[str, Source]:
    if split_file is not None:
        parts = stored_split(base, split_file, seed=seed, val_fraction=fraction, groups=groups)
    elif fraction == 0:
        return {"train": base}
    else:
        parts = held_out_split(base, seed=seed, val_fraction=fraction, groups=groups)
    return {name: Subset(base, indices) for name, indices in parts.items()}


def _joined(sources: list[Source]) -> Source:
    if len(sources) == 1:
        return sources[0]

    return ConcatSource(sources)
