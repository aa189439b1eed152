"""`vitrine check`: what is in a data set, and what is wrong with it, before anything is trained on it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented
from vitrine.commands.arguments import as_path
from vitrine.spelling import counted, num_cells, padded

if TYPE_CHECKING:
    from vitrine.data.auditing.scan import Issue
    from vitrine.data.sources.source import Source

# The table on the terminal stays on one screen; the report has all classes.
MOST_CLASSES_SHOWN = 20
MOST_ISSUES_SHOWN = 12
# What is to be done about problems that no training begins with.
REFUSED = {
    "empty class": "fill or remove the folder of the empty class, then: ",
    "single class": "add a folder of other images, then: ",
}


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What a check found, and the files it wrote."""

    data: str
    num_images: int
    counts: dict[str, dict[str, int]]  # split, class, number of images
    formats: dict[str, int]
    modes: dict[str, int]
    converted: dict[str, int]
    passed_over: dict[str, int]  # files that are not taken for images, by ending
    median_size: tuple[int, int]  # height, width
    num_set_aside: int
    problems: dict[str, int]
    issues: tuple["Issue", ...]
    wrote: tuple[Path, ...]
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 where the check is strict and anything is wrong."""
        return int(self.is_strict and bool(self.issues))

    def __str__(self) -> str:
        from vitrine.data.auditing.scan import conversions_in_words
        from vitrine.data.sources.file_list import photos_passed_over
        from vitrine.spelling import printable

        kinds = ", ".join(f"{count:,} {name}" for name, count in self.formats.items())
        modes = ", ".join(f"{count:,} {name}" for name, count in self.modes.items())
        lines = [
            f"{counted(self.num_images, 'image')} in {printable(self.data)}: {kinds or 'none readable'} ({modes}); "
            f"median {self.median_size[0]} x {self.median_size[1]} (height x width)",
            *self._class_table(),
        ]
        if self.converted:
            lines.append(conversions_in_words(self.converted))
        if self.passed_over:
            endings = ", ".join(f"{count:,} {ending}" for ending, count in list(self.passed_over.items())[:8])
            lines.append(f"Passed over, as their names do not end like an image's: {endings}")
            if photos_passed_over(self.passed_over):
                lines[-1] += "; save the photos among them as JPEG to have them read"
        if not self.issues:
            lines.append("No problems found")
        else:
            found = ", ".join(f"{count:,} {problem}" for problem, count in self.problems.items())
            lines.append(f"{counted(len(self.issues), 'problem')}: {found}")
            lines += [
                f"  {issue.problem}: {printable(issue.path)}: {issue.detail}"
                for issue in self.issues[:MOST_ISSUES_SHOWN]
            ]
            if len(self.issues) > MOST_ISSUES_SHOWN:
                lines.append(f"  and {len(self.issues) - MOST_ISSUES_SHOWN:,} more in issues.csv")
        lines += [f"Wrote {path}" for path in self.wrote]
        return "\n".join([*lines, self.next()])

    def next(self) -> str:
        """Say what to do now; first of all what `finetune` would refuse to begin without."""
        from vitrine.spelling import printable

        first = next((todo for problem, todo in REFUSED.items() if problem in self.problems), "")
        if not any(self.counts.values()):
            first = "put the images of each class into a folder with its name, then: "
        return f"Next: {first}vitrine finetune {shlex.quote(printable(self.data))}"

    def _class_table(self) -> list[str]:
        from vitrine.spelling import printable

        splits = list(self.counts)
        classes = list(self.counts[splits[0]])
        if not classes:
            return []
        names = [printable(name) for name in classes]
        width = max(len("class"), *map(num_cells, names))
        lines = ["  " + "class".ljust(width) + "".join(split.rjust(9) for split in splits)]
        for name, shown in list(zip(classes, names, strict=True))[:MOST_CLASSES_SHOWN]:
            cells = "".join(f"{self.counts[split][name]:,}".rjust(9) for split in splits)
            lines.append("  " + padded(shown, width) + cells)
        if len(classes) > MOST_CLASSES_SHOWN:
            lines.append(f"  and {len(classes) - MOST_CLASSES_SHOWN} more classes")
        return lines


@documented
def check(
    data: Annotated[
        str | Path,
        Doc("Folder with one folder per class, manifest, shards, or the name of a built-in data set"),
    ],
    *,
    out: Annotated[
        Path | str | None,
        Doc("Folder for report.html and issues.csv [default: a new dated folder under ./runs]"),
    ] = None,
    strict: Annotated[bool, Doc("Exit with 1 if any problem is found")] = False,
    near_duplicates: Annotated[
        bool, Doc("Also search for near-duplicates; the time grows with the square of the number of images")
    ] = True,
    workers: Annotated[int, Doc("Files read in parallel; 0 means one per processor")] = 0,
    cache: Annotated[bool, Doc("Reuse the results of an earlier check of unchanged files")] = True,
    overwrite: Annotated[bool, Doc("Replace the report in the output folder")] = False,
) -> CheckResult:
    """Check every image of a data set: counts, unreadable files, duplicates, leaks between splits."""
    data, out = str(data), as_path(out)
    from vitrine.data.auditing.scan import scan, write_issues
    from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
    from vitrine.runtime.progress import notice
    from vitrine.spelling import printable

    splits = _open(data)
    roots = [source.root for source in splits.values() if source.root is not None]
    folder = new_output_folder(
        out,
        verb="check",
        files=("report.html", "issues.csv"),
        never_in=roots,
        is_overwriting=overwrite,
    )
    num_images = counted(sum(map(len, splits.values())), "image")
    notice(f"Plan: reading {num_images} of {printable(data)}; to {folder}")
    with removed_if_empty(folder):
        report = scan(splits, num_workers=workers, is_cached=cache, is_near=near_duplicates)
    wrote = [folder / "issues.csv"]
    write_issues(report.issues, wrote[0])
    page = _page(report, splits, folder / "report.html")
    return CheckResult(
        data=data,
        num_images=report.num_images,
        counts={
            split: dict(zip(report.classes, counts, strict=True)) for split, counts in report.counts.items()
        },
        formats=report.formats,
        modes=report.modes,
        converted=report.converted,
        passed_over=report.passed_over,
        median_size=report.median,
        num_set_aside=report.num_bad,
        problems=report.problems,
        issues=report.issues,
        wrote=(page, *wrote) if page else tuple(wrote),
        is_strict=strict,
    )


def _open(data: str) -> Mapping[str, "Source"]:
    """Open all splits as they are on disk; a folder of loose images is a set without labels."""
    from vitrine.data.sources.opening import is_loose, open_kind, open_source
    from vitrine.runtime.progress import notice

    if is_loose(data):
        notice(f"{data} has no class folders: its images are checked without labels")
        return {"all": open_source(data, is_labelled=False)}
    return open_kind(data)


def _page(report: object, splits: Mapping[str, "Source"], path: Path) -> Path:
    from vitrine.data.auditing.scan import ScanReport
    from vitrine.reports.data_pages import render_scan
    from vitrine.reports.pages import write_page

    assert isinstance(report, ScanReport)
    return write_page(path, render_scan(report, splits))
