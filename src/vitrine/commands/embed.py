"""`vitrine embed`: pictures to feature vectors, for search, clustering, or a classifier of your own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_image_size, as_model, as_pictures, as_place, require_at_least

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
            "A folder for numbered Parquet parts (resumable, for any number of pictures), a .npy file (paths go into "
            "a .csv beside it) or a .parquet file; also at an address such as s3://bucket/folder "
            "[default: features.npy in a new dated folder under ./runs]"
        ),
    ] = None,
    part: options.Part = None,
    part_size: options.PartSize = None,
    engine: options.Engine = "local",
    tokens: Annotated[bool, Doc("Also write the features of every patch; into parts only")] = False,
    store: Annotated[Literal["float32", "float16"], Doc("Number format of the vectors in parts")] = "float32",
    size: options.ModelSize = None,
    patch: options.Patch = None,
    max_patches: options.MaxPatches = None,
    batch_size: options.BatchAlone = None,
    workers: options.Decoders = None,
    device: options.Device = "auto",
    precision: options.PrecisionWish = "auto",
    strict: Annotated[bool, Doc("Exit with 1 if any picture cannot be read")] = False,
    overwrite: Annotated[bool, Doc("Replace the output file if it exists")] = False,
) -> "EmbedResult":
    """Compute one feature vector per picture (the input of the classification head)."""
    require_at_least(1, part_size=part_size, batch_size=batch_size)

    from vitrine.jobs.embed import embed_pictures

    return embed_pictures(
        as_model(model),
        as_pictures(pictures),
        out=as_place(out),
        part=part,
        part_size=part_size,
        engine=engine,
        has_tokens=tokens,
        store=store,
        image_size=as_image_size(size, patch=patch, max_patches=max_patches),
        batch_size=batch_size,
        workers=workers,
        device=device,
        precision=precision,
        is_strict=strict,
        is_overwriting=overwrite,
    )
