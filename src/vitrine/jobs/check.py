"""The work behind `vitrine check`: read every image once, write issues.csv and a page."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from vitrine.checkpoints import load
from vitrine.checkpoints.bundled import box_on
from vitrine.data.auditing.issues import Issue, write_issues
from vitrine.data.auditing.scan import ScanReport, scan
from vitrine.data.sources.manifest import tables_in
from vitrine.data.sources.opening import is_loose, open_kind, open_source
from vitrine.data.sources.source import ALL, Source, Subset
from vitrine.errors import ConfigError
from vitrine.evaluation.features import extract_features
from vitrine.evaluation.label_errors import Suspect, find_label_errors, write_label_errors
from vitrine.reports.data_pages import render_scan
from vitrine.reports.pages import write_page
from vitrine.runtime.devices import choose_device
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.progress import notice, present
from vitrine.runtime.result import Result
from vitrine.spelling import printable, some_of

PAGE, ISSUES, LABELS = "report.html", "issues.csv", "labels.csv"


@dataclass(frozen=True, kw_only=True)
class CheckPlan:
    """The plan of a check: what it reads, and where it writes."""

    data: str
    num_images: int
    out: Path


@dataclass(frozen=True, kw_only=True)
class SuspiciousLabel:
    """An image that a model without knowledge of its label would give to another class."""

    path: str
    label: str
    suggested: str
    probability: float


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckResult(Result):
    """Contents and problems of a data set, and the files that list them."""

    data: str
    num_images: int
    counts: dict[str, dict[str, int]]
    """Split, class, number of images."""
    formats: dict[str, int]
    modes: dict[str, int]
    converted: dict[str, int]
    """Conversions during decoding, and the number of images of each."""
    passed_over: dict[str, int]
    """Files that are not images, by extension; also `hidden` files and `system folder`s."""
    passed_over_names: dict[str, tuple[str, ...]]
    """The first few of each kind."""
    median_size: tuple[int, int]
    """Height, width."""
    num_set_aside: int
    """Files that cannot be decoded; training skips them."""
    problems: dict[str, int]
    issues: tuple[Issue, ...]
    wrote: tuple[Path, ...]
    numbers: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """By split, the lowest, mean and highest label, where labels are numbers to predict."""
    suspects: tuple[SuspiciousLabel, ...] | None = None
    """Images whose label is likely wrong, most suspicious first; None without a model."""
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 if the check is strict and found a problem."""
        return int(self.is_strict and bool(self.issues))


def check_data(
    data: str,
    *,
    model: str | None = None,
    out: Path | None,
    device: str = "auto",
    is_strict: bool,
    is_near: bool,
    num_workers: int,
    is_cached: bool,
    is_overwriting: bool,
) -> CheckResult:
    """Read every image of a data set and write what was found into a folder."""
    splits = _open_splits(data)
    roots = [source.root for source in splits.values() if source.root is not None]
    folder = new_output_folder(
        out, verb="check", files=(PAGE, ISSUES, LABELS), never_in=roots, is_overwriting=is_overwriting
    )
    present(CheckPlan(data=data, num_images=sum(map(len, splits.values())), out=folder))
    with removed_if_empty(folder):
        report = scan(splits, num_workers=num_workers, is_cached=is_cached, is_near=is_near)
        suspects = None if model is None else _suspects(splits, report, model, device=device)
    write_issues(report.issues, folder / ISSUES)
    wrote = [folder / ISSUES]
    first = next(iter(splits.values()))
    if suspects is not None:
        write_label_errors(suspects, first, folder / LABELS)
        wrote.append(folder / LABELS)
    page = write_page(folder / PAGE, render_scan(report, splits, suspects=suspects))
    return CheckResult(
        data=data,
        num_images=report.num_images,
        counts={
            split: dict(zip(report.classes, counts, strict=True)) for split, counts in report.counts.items()
        },
        numbers=report.numbers,
        formats=report.formats,
        modes=report.modes,
        converted=report.converted,
        passed_over=dict(report.unused.counts),
        passed_over_names=dict(report.unused.names),
        median_size=report.median,
        num_set_aside=report.num_bad,
        problems=report.problems,
        issues=report.issues,
        wrote=(page, *wrote),
        suspects=None if suspects is None else tuple(_named(one, first) for one in suspects),
        is_strict=is_strict,
    )


def _open_splits(data: str) -> Mapping[str, Source]:
    """Open all splits as they are on disk; a folder of loose images is a set without labels."""
    if is_loose(data):
        tables = [table.name for table in tables_in(Path(data))]
        advice = f"; for labels, pass one of its tables: {some_of(tables)}" if tables else ""
        notice(f"{data} has no class folders: its images are checked without labels{advice}")
        return {ALL: open_source(data, is_labelled=False)}
    return open_kind(data)


def _suspects(
    splits: Mapping[str, Source], report: ScanReport, model: str, *, device: str
) -> tuple[Suspect, ...]:
    """Score every image of the first split by a closed form that has not seen it."""
    split, source = next(iter(splits.items()))
    if not source.is_labelled or source.is_multi_label:
        raise ConfigError("finds wrong labels only if each image has exactly one label", option="model")
    rows = np.delete(np.arange(len(source)), report.bad[split])
    place = choose_device(device)
    loaded = load(box_on(model, device=device))
    features = extract_features(
        loaded.model.to(place), Subset(source, rows), preprocess=loaded.preprocess, device=place
    )
    rows = np.delete(rows, list(features.failures))
    suspects = find_label_errors(
        features.rows, torch.from_numpy(features.labels.astype(np.int64)), num_classes=len(source.classes)
    )
    return tuple(replace(one, index=int(rows[one.index])) for one in suspects)


def _named(one: Suspect, source: Source) -> SuspiciousLabel:
    return SuspiciousLabel(
        path=printable(source.name(one.index)),
        label=printable(source.classes[one.label]),
        suggested=printable(source.classes[one.suggested]),
        probability=one.probability,
    )
