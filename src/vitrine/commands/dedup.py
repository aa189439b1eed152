"""`vitrine dedup`: find training images that are copies of test images, and list them for exclusion."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_model, as_path, as_texts

if TYPE_CHECKING:
    from vitrine.jobs.dedup import DedupResult


@documented
def dedup(
    train: Annotated[
        str | Path, Doc("Training set: folder, manifest, shards, or the name of a built-in data set")
    ],
    *,
    against: Annotated[
        str | Path | Sequence[str | Path], Doc("Test set; may be repeated for several test sets")
    ],
    by: Annotated[
        str,
        Doc(
            "Search methods, separated by commas: hash (equal files), perceptual (shifted, brightened, "
            "re-compressed), features"
        ),
    ] = "hash,perceptual",
    model: Annotated[
        str | Path | None,
        Doc("Also compare the features of this model: run folder, weights file, hub id or variant name"),
    ] = None,
    least_cosine: Annotated[
        float, Doc("Minimum cosine similarity for two images to count as duplicates; depends on the model")
    ] = 0.95,
    device: options.Device = "auto",
    mirrored: Annotated[bool, Doc("Also find horizontally flipped copies")] = False,
    split: Annotated[str, Doc("Split of the training set to search; all means every image")] = "all",
    against_split: Annotated[str, Doc("Split of each test set to compare with")] = "all",
    out: Annotated[
        Path | str | None,
        Doc("Folder for pairs.html, pairs.csv and exclude.txt [default: a new dated folder under ./runs]"),
    ] = None,
    workers: Annotated[int, Doc("Files read in parallel; 0 means one per processor")] = 0,
    cache: Annotated[bool, Doc("Reuse the results of an earlier search of unchanged files")] = True,
    overwrite: Annotated[bool, Doc("Replace the results in the output folder")] = False,
) -> "DedupResult":
    """Find training images that are copies of test images, and write a list that training can skip."""
    from vitrine.jobs.dedup import find_copies

    return find_copies(
        str(train),
        against=as_texts(against),
        methods=[part.strip() for part in by.split(",") if part.strip()],
        model=as_model(model),
        least_cosine=least_cosine,
        device=device,
        is_mirrored=mirrored,
        split=split,
        against_split=against_split,
        out=as_path(out),
        num_workers=workers,
        is_cached=cache,
        is_overwriting=overwrite,
    )
