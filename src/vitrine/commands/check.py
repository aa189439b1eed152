"""`vitrine check`: contents and problems of a data set, before anything is trained on it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_model, as_path

if TYPE_CHECKING:
    from vitrine.jobs.check import CheckResult


@documented
def check(
    data: Annotated[
        str | Path,
        Doc("Folder with one folder per class, manifest, shards, or the name of a built-in data set"),
    ],
    *,
    model: Annotated[
        str | Path | None,
        Doc("Also list labels that are likely wrong, by the features of this model, such as box"),
    ] = None,
    out: Annotated[
        Path | str | None,
        Doc("Folder for report.html and issues.csv [default: a new dated folder under ./runs]"),
    ] = None,
    strict: Annotated[bool, Doc("Exit with 1 if any problem is found")] = False,
    near_duplicates: Annotated[
        bool, Doc("Also search for near-duplicates; the time grows with the square of the number of images")
    ] = True,
    workers: Annotated[int, Doc("Files read in parallel; 0 means one per processor")] = 0,
    device: options.Device = "auto",
    cache: Annotated[bool, Doc("Reuse the results of an earlier check of unchanged files")] = True,
    overwrite: Annotated[bool, Doc("Replace the report in the output folder")] = False,
) -> "CheckResult":
    """Check every image of a data set: counts, unreadable files, duplicates, leaks between splits."""
    from vitrine.jobs.check import check_data

    return check_data(
        str(data),
        model=None if model is None else as_model(model),
        device=device,
        out=as_path(out),
        is_strict=strict,
        is_near=near_duplicates,
        num_workers=workers,
        is_cached=cache,
        is_overwriting=overwrite,
    )
