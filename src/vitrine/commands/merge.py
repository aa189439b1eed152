"""`vitrine merge`: check that all parts of a job are there, and join their records."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented
from vitrine.commands.arguments import as_place

if TYPE_CHECKING:
    from vitrine.jobs.merge import MergeResult


@documented
def merge(
    folder: Annotated[
        str | Path, Doc("Folder of parts that embed or predict wrote, on one or several machines")
    ],
    *,
    verify: Annotated[bool, Doc("Also read every part and compare its checksum")] = False,
) -> "MergeResult":
    """Check that every part of a job is there, and join their records into one manifest."""
    from vitrine.jobs.merge import merge_parts

    return merge_parts(as_place(folder), is_verifying=verify)
