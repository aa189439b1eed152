"""`vitrine index`: feature vectors of pictures in an index on disk, for search."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_image_size, as_model, as_path, as_pictures

if TYPE_CHECKING:
    from vitrine.jobs.index import IndexResult


@documented
def index(
    model: options.ModelOrBox = None,
    pictures: options.Pictures = None,
    *,
    out: Annotated[
        Path | str | None,
        Doc(
            "Folder of the index; pictures that it holds already are not computed again [default: NAME.index]"
        ),
    ] = None,
    size: options.ModelSize = None,
    patch: options.Patch = None,
    max_patches: options.MaxPatches = None,
    batch_size: options.BatchAlone = None,
    workers: options.Decoders = None,
    device: options.Device = "auto",
    precision: options.PrecisionWish = "auto",
    overwrite: Annotated[bool, Doc("Build the index anew")] = False,
) -> "IndexResult":
    """Build an index of pictures, or of the parts that embed wrote, or bring it up to date."""
    from vitrine.jobs.index import index_pictures

    return index_pictures(
        as_model(model),
        as_pictures(pictures),
        out=as_path(out),
        image_size=as_image_size(size, patch=patch, max_patches=max_patches),
        batch_size=batch_size,
        workers=workers,
        device=device,
        precision=precision,
        is_overwriting=overwrite,
    )
