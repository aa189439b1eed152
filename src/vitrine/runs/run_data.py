"""The data of a run: opened by all processes, unreadable files skipped, the split kept in the run folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitrine.data.auditing.issues import Issue
from vitrine.data.auditing.scan import ScanReport, conversion_text, scan, skip_unreadable
from vitrine.data.auditing.unused_files import report_unused
from vitrine.data.sources.exclusions import read_exclusions
from vitrine.data.sources.labels import require_classes
from vitrine.data.sources.opening import check_classes, open_splits
from vitrine.data.sources.source import ConcatSource, Source
from vitrine.errors import DataError, TryOption, TryVerb
from vitrine.runs.run_split import split_groups, undivided, update_split, without
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.runtime.progress import notice, quiet
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import counted, printable

# data.json lists at most this many problems; `check` writes all of them.
MOST_ISSUES = 500


@dataclass(frozen=True, kw_only=True)
class Division:
    """How the images of a run were chosen and divided."""

    hold_out: float | None = None
    """Fraction of the training images that was held out; None is the default, where there is no validation set."""
    exclude: Path | None = None
    """List of images that were excluded."""
    group: str | None = None
    """Column, regular expression or `burst`: images of one group stay on one side of the split."""


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Facts about the files of a run; generated images have none."""

    skipped: tuple[str, ...] = ()
    """Names of the files that cannot be read."""
    issues: tuple[Issue, ...] = ()
    """Other problems of the files, the first few hundred."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """Hash of the bytes of all images, by split."""
    median_size: tuple[int, int] | None = None
    """Height and width of the image with the median area."""


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The splits that a run trains on and is evaluated on, and how they were opened."""

    address: str
    splits: Mapping[str, Source]
    division: Division = field(default_factory=Division)
    files: FileFacts = field(default_factory=FileFacts)
    trains_on_all: bool = False
    """Whether the held-out images are trained on too, as after a sweep."""

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
        division=Division(hold_out=options.hold_out, exclude=options.exclude, group=options.group),
        files=FileFacts(skipped=bad) if report is None else files_of(report, skipped=bad),
    )


def files_of(report: ScanReport, *, skipped: tuple[str, ...]) -> FileFacts:
    """Keep the facts of a scan that a run records."""
    return FileFacts(
        skipped=skipped,
        issues=report.issues[:MOST_ISSUES],
        contents=report.contents,
        median_size=report.median,
    )


@dataclass(frozen=True, kw_only=True)
class _Opening:
    """The settings with which every process opens the splits of a run."""

    address: str
    options: DataOptions
    seed: int
    workers: int
    needs_labels: bool
    split_file: Path | None

    def open(self) -> dict[str, Source]:
        """Open the splits; a split file, if there is one, decides how images are divided."""
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
        address, options = self.address, self.options
        if "train" not in splits:
            raise DataError(
                f"{address} has only {' and '.join(splits)}, so there are no images to train on",
                advice=[TryVerb("evaluate", ("MODEL", address), "to test a model on it")],
            )
        train = splits["train"]
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
