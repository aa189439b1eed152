"""`vitrine embed`: pictures to feature vectors, for search, clustering, or a classifier of your own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_model, as_path, as_pictures

if TYPE_CHECKING:
    from vitrine.jobs.embed import EmbedResult


@documented
def embed(
    model: options.ModelOrBox = None,
    pictures: options.Pictures = None,
    *,
    out: Annotated[
        Path | str | None,
        Doc(
            "A .npy file (paths go into a .csv beside it) or a .parquet file "
            "[default: features.npy in a new dated folder under ./runs]"
        ),
    ] = None,
    size: options.ModelSize = None,
    batch_size: options.BatchAtATime = None,
    workers: options.Readers = 2,
    device: options.Device = "auto",
    precision: options.ModelPrecision = "fp32",
    strict: Annotated[bool, Doc("Exit with 1 if any picture cannot be read")] = False,
    overwrite: Annotated[bool, Doc("Replace the output file if it exists")] = False,
) -> "EmbedResult":
    """Compute one feature vector per picture (the input of the classification head)."""
    from vitrine.jobs.embed import embed_pictures

    return embed_pictures(
        as_model(model),
        as_pictures(pictures),
        out=as_path(out),
        image_size=size,
        batch_size=batch_size,
        workers=workers,
        device=device,
        precision=precision,
        is_strict=strict,
        is_overwriting=overwrite,
    )
