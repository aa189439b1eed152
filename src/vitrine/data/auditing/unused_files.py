"""Files in the folder of a data set that are not part of it: images without a label, hidden images, other files."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from vitrine.data.sources.file_list import FileList
from vitrine.data.sources.folder_walk import SkippedFiles, list_images, skipped_text
from vitrine.data.sources.manifest import files_of
from vitrine.data.sources.source import Source, Subset
from vitrine.runtime.progress import notice, quiet
from vitrine.spelling import counted, some_of


@dataclass(frozen=True, kw_only=True)
class UnusedFiles:
    """Files below the folder of a data set that no split contains; paths are relative to that folder."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Files that are not images, by extension; also `hidden` files and `system folder`s."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The first few of each kind."""
    unlabelled: tuple[str, ...] = ()
    """Images beside the class folders, or missing in the table of the set."""
    hidden_images: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Count and name the files that are not images, with advice on photos and videos."""
        return skipped_text(self.counts, self.names)


def unused_files(splits: Mapping[str, Source]) -> UnusedFiles:
    """Walk the folder of a set of files and compare it with its splits; other sets have no unused files."""
    lists = [
        whole
        for source in splits.values()
        if isinstance(whole := source.source if isinstance(source, Subset) else source, FileList)
        and whole.task == "classes"  # masks and class lists are not images of the set
    ]
    root = lists[0].root if lists else None
    if root is None or not root.is_dir():
        return UnusedFiles()
    base, skipped = lists[0].base, SkippedFiles()
    with quiet():  # links upwards were reported when the set was opened
        listed = {name for one in lists for name in one.paths}
        unlisted = tuple(name for name in list_images(base, skipped) if name not in listed)
        for table in files_of(lists[0].address).values():
            skipped.remove(table.suffix.lower(), os.path.relpath(table, base))
    return UnusedFiles(
        counts=skipped.counts,
        names={kind: tuple(names) for kind, names in skipped.names.items()},
        unlabelled=unlisted if lists[0].is_whole_folder else (),
        hidden_images=tuple(skipped.hidden_images),
    )


def report_unused(unused: UnusedFiles) -> None:
    """Send one notice per kind of unused files."""
    if unused.unlabelled:
        notice(
            f"{counted(len(unused.unlabelled), 'image')} without a label, outside the class folders or the table, "
            f"{'is' if len(unused.unlabelled) == 1 else 'are'} not used: {some_of(unused.unlabelled, most=3)}"
        )
    if unused.counts:
        notice(unused.text)
