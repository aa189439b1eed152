"""The work behind `vitrine check`: read every image once, write issues.csv and a page."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitrine.data.auditing.issues import Issue, write_issues
from vitrine.data.auditing.scan import scan
from vitrine.data.sources.opening import is_loose, open_kind, open_source
from vitrine.data.sources.source import ALL, Source
from vitrine.reports.data_pages import render_scan
from vitrine.reports.pages import write_page
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.progress import notice, present
from vitrine.runtime.result import Result

PAGE, ISSUES = "report.html", "issues.csv"


@dataclass(frozen=True, kw_only=True)
class CheckPlan:
    """What a check is about to read, and where it writes."""

    data: str
    num_images: int
    out: Path


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
    """Conversions that decoding makes, and of how many images."""
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
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 if the check is strict and found a problem."""
        return int(self.is_strict and bool(self.issues))


def check_data(
    data: str,
    *,
    out: Path | None,
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
        out, verb="check", files=(PAGE, ISSUES), never_in=roots, is_overwriting=is_overwriting
    )
    present(CheckPlan(data=data, num_images=sum(map(len, splits.values())), out=folder))
    with removed_if_empty(folder):
        report = scan(splits, num_workers=num_workers, is_cached=is_cached, is_near=is_near)
    write_issues(report.issues, folder / ISSUES)
    page = write_page(folder / PAGE, render_scan(report, splits))
    return CheckResult(
        data=data,
        num_images=report.num_images,
        counts={
            split: dict(zip(report.classes, counts, strict=True)) for split, counts in report.counts.items()
        },
        formats=report.formats,
        modes=report.modes,
        converted=report.converted,
        passed_over=dict(report.unused.counts),
        passed_over_names=dict(report.unused.names),
        median_size=report.median,
        num_set_aside=report.num_bad,
        problems=report.problems,
        issues=report.issues,
        wrote=(page, folder / ISSUES),
        is_strict=is_strict,
    )


def _open_splits(data: str) -> Mapping[str, Source]:
    """Open all splits as they are on disk; a folder of loose images is a set without labels."""
    if is_loose(data):
        notice(f"{data} has no class folders: its images are checked without labels")
        return {ALL: open_source(data, is_labelled=False)}
    return open_kind(data)
