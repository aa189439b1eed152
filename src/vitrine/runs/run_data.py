"""The data of a run: opened by all processes, unreadable files skipped, the split kept in the run folder."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vitrine.data.auditing.issues import Issue
from vitrine.data.auditing.near_duplicates import near_pairs
from vitrine.data.auditing.scan import ScanReport, conversion_text, scan, skip_unreadable
from vitrine.data.auditing.survey import survey_images
from vitrine.data.auditing.unused_files import report_unused
from vitrine.data.sources.exclusions import leave_out, read_exclusions
from vitrine.data.sources.grouping import Indices, group_images, joined_pairs, likely_grouping, merged
from vitrine.data.sources.labels import require_classes
from vitrine.data.sources.opening import check_classes, open_splits
from vitrine.data.sources.source import ConcatSource, Source, Subset
from vitrine.data.sources.splitting import write_split
from vitrine.errors import DataError, TryOption, TryVerb
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.runtime.progress import notice, quiet
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import counted, printable

# data.json lists at most this many problems; `check` writes all of them.
MOST_ISSUES = 500
# Images up to which near-duplicates are searched for before a split: about ten seconds on two cores.
MOST_COMPARED = 20_000


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The splits that a run trains on and is evaluated on, and how they were opened."""

    address: str
    splits: Mapping[str, Source]
    hold_out: float | None = None
    """Fraction of the training images that was held out; None is the default, where there is no validation set."""
    exclude: Path | None = None
    """List of images that were excluded."""
    group: str | None = None
    """Column, regular expression or `burst`: images of one group stay on one side of the split."""
    skipped: tuple[str, ...] = ()
    """Names of the files that cannot be read."""
    issues: tuple[Issue, ...] = ()
    """Other problems of the files, the first few hundred."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """Hash of the bytes of all images, by split; generated images have none."""
    trains_on_all: bool = False
    """Whether the held-out images are trained on too, as after a sweep."""
    median_size: tuple[int, int] | None = None
    """Height and width of the image with the median area; None for generated images."""

    @property
    def train(self) -> Source:
        """The training images."""
        return self.splits["train"]

    @property
    def validation(self) -> Source | None:
        """The validation images, if any are held out."""
        return self.splits.get("val")


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """How the data of a run is opened."""

    hold_out: float | None = None
    """Fraction of the training images to hold out if there is no validation set; None is a tenth."""
    exclude: Path | None = None
    """List of images to exclude."""
    strict: bool = False
    """Whether unreadable files are refused, not skipped."""
    allow_empty_class: bool = False
    allow_one_class: bool = False
    """Whether all images may have the same class, as when it is added to others."""
    group: str | None = None
    """Column, regular expression or `burst`: images of one group stay on one side of the split."""
    allow_numbers: bool = False
    """Whether labels may be numbers to predict."""


def open_data(
    address: str,
    options: DataOptions,
    *,
    folder: RunFolder,
    seed: int,
    workers: int,
    processes: Processes,
    needs_labels: bool = True,
    is_resumed: bool = False,
    allow_changed: bool = False,
) -> RunData:
    """Open the splits without images that are excluded or cannot be read, and report how many those are.

    The first process scans the files and writes the split; the others read it.
    """
    opening = _Opening(
        address=address, options=options, seed=seed, workers=workers, needs_labels=needs_labels,
        split_file=None if options.hold_out == 0 else folder.split_file,
    )  # fmt: skip
    own: dict[str, Source] = {}

    def scanned() -> tuple[ScanReport | None, tuple[str, ...]]:
        own.update(opening.open_first(is_resumed=is_resumed, allow_changed=allow_changed))
        return opening.scan(own, is_resumed=is_resumed)

    report, bad = on_first_process(scanned, processes)
    splits = own or opening.open()
    if report is not None:
        splits = skip_unreadable(splits, report)
        if report.converted:
            notice(conversion_text(report.converted))
        report_unused(report.unused)
    if options.exclude is not None:
        splits |= without(splits, read_exclusions(options.exclude))
    return RunData(
        address=address,
        splits=splits,
        hold_out=options.hold_out,
        exclude=options.exclude,
        group=options.group,
        skipped=bad,
        issues=() if report is None else report.issues[:MOST_ISSUES],
        contents={} if report is None else report.contents,
        median_size=None if report is None else report.median,
    )


@dataclass(frozen=True, kw_only=True)
class _Opening:
    """How the splits of a run are opened, by every process alike."""

    address: str
    options: DataOptions
    seed: int
    workers: int
    needs_labels: bool
    split_file: Path | None

    def open(self) -> dict[str, Source]:
        """Open the splits, divided as the split file says where there is one."""
        options = self.options
        return open_splits(
            self.address,
            seed=self.seed,
            val_fraction=options.hold_out,
            split_file=self.split_file,
            allow_empty_class=options.allow_empty_class or not self.needs_labels,
            is_labelled=self.needs_labels,
            groups=lambda source: split_groups(source, options.group, workers=self.workers),
        )

    def open_first(self, *, is_resumed: bool, allow_changed: bool) -> dict[str, Source]:
        """Open the splits in the process that writes the split file; data that changed since is refused or added."""
        is_known = is_resumed and self.split_file is not None and self.split_file.exists()
        try:
            return self.open()
        except DataError as error:
            if not is_known or str(self.split_file) not in str(error):
                raise
            if not allow_changed:
                raise changed_data(self.address) from None
        assert self.split_file is not None
        update_split(self.address, self.split_file, needs_labels=self.needs_labels)
        return self.open()

    def scan(
        self, splits: dict[str, Source], *, is_resumed: bool
    ) -> tuple[ScanReport | None, tuple[str, ...]]:
        """Check classes and files; return the report and the names of files that cannot be read."""
        address, options, train = self.address, self.options, splits["train"]
        if self.needs_labels and not train.is_labelled:
            raise DataError(f"{address} has no labels; use one folder per class, or a manifest with labels")
        if self.needs_labels and not (options.allow_numbers and train.is_numeric):
            require_classes(train, address)
            if not options.allow_one_class:
                require_two_classes(train, address)
        if train.root is None:  # generated pictures cannot be broken
            return None, ()
        report = scan(splits, num_workers=self.workers, is_near=False)
        if report.num_bad and options.strict:
            raise DataError(
                f"cannot read {counted(report.num_bad, 'file')} of {address}",
                advice=[TryVerb("check", (address,), "to list them")],
            )
        if self.needs_labels and not is_resumed:  # all files of a class may be unreadable
            with quiet():
                left = skip_unreadable(splits, report)
            check_classes(left, allow_empty_class=options.allow_empty_class)
        return report, tuple(splits[split].name(row) for split, rows in report.bad.items() for row in rows)


def split_groups(source: Source, by: str | None, *, workers: int) -> Indices:
    """Return the groups that a split keeps together: near-duplicates, and those that were asked for.

    If none were asked for and groups look likely, report it: similar images on both sides make the score too good.
    """
    groups = [np.arange(len(source), dtype=np.int64)]
    if by is not None:
        groups.append(group_images(source, by))
    elif (likely := likely_grouping(source)) is not None:
        value, evidence = likely
        notice(
            f"Images may belong together: {evidence}. If they are split, the score on held-out images is too good",
            advice=[TryOption("group", "to keep them on one side", value)],
        )
    if source.root is None:  # generated pictures
        return merged(groups)
    if len(source) > MOST_COMPARED:
        notice(f"{len(source):,} images are too many to keep near-duplicates on one side of the split")
        return merged(groups)
    survey = survey_images(source, num_workers=workers)
    pairs = near_pairs(survey.thumbnails, colours=survey.colours)
    near = joined_pairs(len(source), zip(pairs.queries.tolist(), pairs.others.tolist(), strict=True))
    return merged([*groups, near])


def require_two_classes(source: Source, address: str) -> None:
    """Refuse images that all have the same class: every model would be right about them."""
    if len(source.classes) == 1 and not source.is_multi_label:
        raise DataError(
            f"all images of {printable(address)} have one class, {printable(source.classes[0])}, so there is nothing "
            "to classify; add a folder of other images",
            advice=[
                TryVerb("pretrain", (address,), "to learn without labels", {"objective": "masked-patches"})
            ],
        )


def changed_data(what: str) -> DataError:
    """Return the error that a run's data has changed."""
    return DataError(
        f"{what} has changed since this run began; restore the files",
        advice=[TryOption("allow_changed_data", "to continue with the data as it is now", True)],
    )


def update_split(address: str, split_file: Path, *, needs_labels: bool = True) -> None:
    """Write the split again for changed data: held-out images stay held out, new images are trained on."""

    with split_file.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        side = {row["path"]: row["split"] for row in csv.DictReader(file)}
    source = open_splits(address, val_fraction=0, allow_empty_class=True, is_labelled=needs_labels)["train"]
    held_out = np.array([side.get(source.name(row)) == "val" for row in range(len(source))])
    write_split(source, split_file, {"train": np.flatnonzero(~held_out), "val": np.flatnonzero(held_out)})


def require_same_classes(data: RunData, folder: RunFolder) -> None:
    """Refuse data whose classes are no longer those of the run's head."""
    before, now = folder.read_classes(), list(data.train.classes)
    if now != before:
        names = sorted(set(now) ^ set(before))
        raise DataError(
            f"the classes have changed since this run began (for one, {names[0] if names else 'their order'})",
            advice=[TryVerb("finetune", (data.address,), "to start a new run")],
        )


def with_held_out(data: RunData) -> RunData:
    """Add the held-out images to the training images, for a run on all of them."""
    whole = undivided(data.splits) or ConcatSource([data.splits["train"], data.splits["val"]])
    test = {name: source for name, source in data.splits.items() if name == "test"}
    return replace(data, splits={"train": whole, **test}, trains_on_all=True)


def undivided(splits: Mapping[str, Source]) -> Subset | None:
    """Return the training images before some of them were held out; None if the validation set is one of its own."""
    train, val = splits["train"], splits.get("val")
    if not isinstance(train, Subset) or not isinstance(val, Subset) or train.source is not val.source:
        return None
    return Subset(train.source, np.sort(np.concatenate([train.indices, val.indices])))


def without(splits: Mapping[str, Source], names: Iterable[str]) -> dict[str, Source]:
    """Exclude listed images from the training images and those held out of them: a sweep trains on both."""
    whole = undivided(splits)
    if whole is None:
        return {"train": leave_out(splits["train"], names)}
    kept = leave_out(whole, names)
    assert isinstance(kept, Subset)
    parts = [part for part in (splits["train"], splits["val"]) if isinstance(part, Subset)]
    train, val = (Subset(part, np.flatnonzero(np.isin(part.indices, kept.indices))) for part in parts)
    return {"train": train, "val": val}
