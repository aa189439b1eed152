"""The data of a run: opened for all processes, what cannot be read set aside, the split kept in the folder."""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vitrine.errors import DataError, VitrineError
from vitrine.runtime.find_run import run_of_model
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import counted

if TYPE_CHECKING:
    from vitrine.data.auditing.scan import Issue
    from vitrine.data.sources.source import Source, Subset
    from vitrine.runtime.processes import Processes

# The record of a run is no place for a million lines; `vitrine check` writes all of them.
MOST_ISSUES = 500


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The splits that a run trains and is judged on."""

    splits: "Mapping[str, Source]"
    set_aside: tuple[str, ...] = ()
    """Names of the files that cannot be read."""
    issues: "tuple[Issue, ...]" = ()
    """What else is wrong with the files, the first few hundred."""
    contents: "Mapping[str, str]" = field(default_factory=dict)
    """By split, a hash of the bytes of all images; of generated ones none."""


def open_data(
    address: str,
    *,
    folder: Path,
    seed: int,
    hold_out: float | None,
    exclude: Path | None,
    strict: bool,
    allow_empty_class: bool,
    workers: int,
    processes: "Processes",
    needs_labels: bool = True,
    is_resumed: bool = False,
    allow_changed: bool = False,
) -> RunData:
    """Open the splits, leave out what cannot be read or was excluded, and say how many.

    The first process looks at the files and writes the split; the others read what it found.
    """
    from vitrine.data.auditing.scan import ScanReport, conversions_in_words, scan, set_aside
    from vitrine.data.sources.exclusions import read_exclusions
    from vitrine.data.sources.file_list import photos_passed_over
    from vitrine.data.sources.opening import check_classes, open_splits
    from vitrine.runtime.processes import on_first_process
    from vitrine.runtime.progress import notice, quiet

    split_file = None if hold_out == 0 else RunFolder(folder).split_file

    def opened() -> "dict[str, Source]":
        return open_splits(
            address,
            seed=seed,
            val_fraction=hold_out,
            split_file=split_file,
            allow_empty_class=allow_empty_class or not needs_labels,
            is_labelled=needs_labels,
        )

    def opened_first() -> "dict[str, Source]":
        is_known = is_resumed and split_file is not None and split_file.exists()
        try:
            return opened()
        except DataError as error:
            if not is_known or str(split_file) not in str(error):
                raise
            if not allow_changed:
                raise changed(address) from None
        assert split_file is not None
        mend_split(address, split_file, needs_labels=needs_labels)
        return opened()

    def looked_through() -> "tuple[ScanReport | None, tuple[str, ...]]":
        own.update(opened_first())
        if needs_labels and not own["train"].is_labelled:
            raise DataError(f"{address} has no labels; give one folder a class, or a manifest with labels")
        if needs_labels:
            require_two_classes(own["train"], address)
        if own["train"].root is None:  # generated pictures cannot be broken
            return None, ()
        report = scan(own, num_workers=workers, is_near=False)
        if report.num_bad and strict:
            raise DataError(
                f"cannot be read: {counted(report.num_bad, 'file')} of {address}; see: vitrine check {address}"
            )
        if needs_labels and not is_resumed:  # a class may have had unreadable files alone
            with quiet():
                left = set_aside(own, report)
            check_classes(left, allow_empty_class=allow_empty_class)
        return report, tuple(own[split].name(row) for split, rows in report.bad.items() for row in rows)

    own: dict[str, Source] = {}
    report, bad = on_first_process(looked_through, processes)
    splits = own or opened()
    if report is not None:
        splits = set_aside(splits, report)
        if report.converted:
            notice(conversions_in_words(report.converted))
        if photos := photos_passed_over(report.passed_over):
            notice(photos)
    if exclude is not None:
        splits |= without(splits, read_exclusions(exclude))
    issues = () if report is None else report.issues[:MOST_ISSUES]
    contents = {} if report is None else report.contents
    return RunData(splits=splits, set_aside=bad, issues=issues, contents=contents)


def require_two_classes(source: "Source", address: str) -> None:
    """Refuse images that are all of one class: whatever a model says of them is right."""
    from vitrine.spelling import printable

    if len(source.classes) == 1 and not source.is_multi_label:
        raise DataError(
            f"all images of {printable(address)} are of one class, {printable(source.classes[0])}, so there is "
            "nothing to tell apart; add a folder of other images, or learn without labels: vitrine pretrain "
            f"{printable(address)} --objective masked-patches"
        )


@contextmanager
def withdrawing(folder: Path, processes: "Processes") -> Iterator[None]:
    """Take an empty folder away again where the block finds that there will be no run."""
    was_empty = processes.is_first and not any(folder.iterdir())
    try:
        yield
    except (VitrineError, KeyboardInterrupt):
        if was_empty:
            RunFolder(folder).split_file.unlink(missing_ok=True)
            folder.rmdir()
        raise


def changed(what: str) -> DataError:
    """Say that a run cannot go on as it began."""
    return DataError(
        f"{what} is not what this run began with; bring the files back, or go on with what is there now with "
        "--allow-changed-data"
    )


def mend_split(address: str, split_file: Path, *, needs_labels: bool = True) -> None:
    """Write the split anew for changed data: who was held out still is, what is new is trained on."""
    import csv

    import numpy as np

    from vitrine.data.sources.opening import open_splits
    from vitrine.data.sources.splitting import write_split

    with split_file.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        side = {row["path"]: row["split"] for row in csv.DictReader(file)}
    source = open_splits(address, val_fraction=0, allow_empty_class=True, is_labelled=needs_labels)["train"]
    held_out = np.array([side.get(source.name(row)) == "val" for row in range(len(source))])
    write_split(source, split_file, {"train": np.flatnonzero(~held_out), "val": np.flatnonzero(held_out)})


def require_classes(splits: "Mapping[str, Source]", folder: Path) -> None:
    """Refuse data whose classes are no longer those of the run's head."""
    before = RunFolder(folder).read_classes()
    now = list(splits["train"].classes)
    if now != before:
        names = sorted(set(now) ^ set(before))
        raise DataError(
            f"the classes are not those that this run began with (for one, {names[0] if names else 'their order'}); "
            "start a new run with: vitrine finetune"
        )


def splits_of_run(folder: RunFolder) -> "dict[str, Source] | None":
    """Open a run's data with the split that it was trained with; None where nothing was held out."""
    from vitrine.data.sources.opening import open_splits
    from vitrine.recipes.recipe import from_yaml

    run = folder.read_record()
    if run.trains_on_all or run.model["num_classes"] is None:
        return None
    return open_splits(
        run.data,
        seed=from_yaml(folder.read_recipe()).training.seed,
        val_fraction=run.hold_out,
        split_file=None if run.hold_out == 0 else folder.split_file,
        allow_empty_class=True,
    )


def trained_on(model: str | Path, data: str) -> RunFolder | None:
    """Return the run folder that a model is from, where that run was given this very data; None otherwise."""
    folder = run_of_model(model)
    if folder is None:
        return None
    address = folder.read_record().data
    is_same = address == data or (Path(data).exists() and os.path.realpath(address) == os.path.realpath(data))
    return folder if is_same else None


def num_trained_on(model: str | Path, source: "Source") -> int:
    """Count the images of a set that the run of a model was trained on, by their files and if it can be told."""
    from vitrine.data.sources.opening import open_splits

    folder = run_of_model(model)
    if folder is None or source.root is None:
        return 0
    address = folder.read_record().data
    if not Path(address).exists():
        return 0
    try:
        splits = splits_of_run(folder) or open_splits(address, val_fraction=0, allow_empty_class=True)
    except VitrineError:  # the data is no longer what it was
        return 0
    folders = functools.cache(os.path.realpath)

    def places(images: "Source") -> "Iterator[tuple[str, str]]":
        for path in filter(None, map(images.path, range(len(images)))):
            yield folders(str(path.parent)), path.name

    trained = set(places(splits["train"]))
    return sum(place in trained for place in places(source))


def everything(splits: "Mapping[str, Source]") -> "dict[str, Source]":
    """Join the held-out part to the rest, for a run on all images."""
    from vitrine.data.sources.source import ConcatSource as Joined

    whole = uncut(splits) or Joined([splits["train"], splits["val"]])
    return {"train": whole} | {name: source for name, source in splits.items() if name == "test"}


def uncut(splits: "Mapping[str, Source]") -> "Subset | None":
    """Put the part that we held out of train back to its places, as with --hold-out 0; None for a val of its own."""
    import numpy as np

    from vitrine.data.sources.source import Subset

    train, val = splits["train"], splits.get("val")
    if not isinstance(train, Subset) or not isinstance(val, Subset) or train.source is not val.source:
        return None
    return Subset(train.source, np.sort(np.concatenate([train.indices, val.indices])))


def without(splits: "Mapping[str, Source]", names: "Iterable[str]") -> "dict[str, Source]":
    """Leave listed images out of train, and of what was held out of it: a sweep trains on that in the end."""
    import numpy as np

    from vitrine.data.sources.exclusions import leave_out
    from vitrine.data.sources.source import Subset

    whole = uncut(splits)
    if whole is None:
        return {"train": leave_out(splits["train"], names)}
    kept = leave_out(whole, names)
    assert isinstance(kept, Subset)
    parts = [part for part in (splits["train"], splits["val"]) if isinstance(part, Subset)]
    train, val = (Subset(part, np.flatnonzero(np.isin(part.indices, kept.indices))) for part in parts)
    return {"train": train, "val": val}
