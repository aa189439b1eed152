"""`vitrine predict`: the most likely classes of pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import (
    as_image_size,
    as_model,
    as_pictures,
    as_place,
    as_texts,
    require_at_least,
)
from vitrine.errors import ConfigError

if TYPE_CHECKING:
    from vitrine.jobs.predict import PredictResult


@documented
def predict(
    model: options.ModelOrBox = None,
    pictures: options.Pictures = None,
    *,
    out: Annotated[
        Path | str | None,
        Doc(
            "File for the predictions: .csv, .json or .jsonl, - for CSV on standard output, or a folder for numbered "
            "Parquet parts, or for masks, boxes and overlays; also at an address such as s3://bucket/folder"
        ),
    ] = None,
    part: options.Part = None,
    part_size: options.PartSize = None,
    engine: options.Engine = "local",
    top: Annotated[
        int | None,
        Doc("Classes to name per picture [default: 5; 1 when several pictures are listed]"),
    ] = None,
    classes: Annotated[
        str | Sequence[str] | None,
        Doc('Classes in words, for models with a text tower (CLIP, SigLIP): "a cat, a dog", or repeated'),
    ] = None,
    prompts: Annotated[
        Sequence[str] | None,
        Doc('Sentence around each class, averaged where there are several ["a photo of {}."; repeatable]'),
    ] = None,
    coverage: Annotated[
        float | None,
        Doc("Also list the classes that contain the true one with this probability, such as 0.95"),
    ] = None,
    size: options.ModelSize = None,
    patch: options.Patch = None,
    max_patches: options.MaxPatches = None,
    batch_size: options.BatchAlone = None,
    workers: options.Decoders = None,
    device: options.Device = "auto",
    precision: options.PrecisionWish = "auto",
    strict: Annotated[bool, Doc("Exit with 1 if any picture cannot be read")] = False,
    overwrite: Annotated[bool, Doc("Replace the output file if it exists")] = False,
) -> "PredictResult | Any":  # for masks `MaskPredictions`, for boxes `BoxPredictions`
    """Name the most likely classes of pictures; a picture that cannot be read gets a row with the reason.

    A model that was trained on masks or boxes writes them, with an overlay per picture.
    """
    require_at_least(1, part_size=part_size, batch_size=batch_size)
    if top is not None and top < 1:
        raise ConfigError(f"must be at least 1, got {top}", option="top")
    if coverage is not None and not 0 < coverage < 1:
        raise ConfigError(f"must be between 0 and 1, got {coverage:g}", option="coverage")

    named = tuple(name.strip() for words in as_texts(classes) for name in words.split(",") if name.strip())
    if prompts and not named:
        raise ConfigError("has no effect without classes; name the classes too", option="prompts")

    from vitrine.jobs.predict import predict_pictures

    return predict_pictures(
        as_model(model),
        as_pictures(pictures),
        out=as_place(out),
        part=part,
        part_size=part_size,
        engine=engine,
        top=top,
        classes=named,
        prompts=as_texts(prompts),
        coverage=coverage,
        image_size=as_image_size(size, patch=patch, max_patches=max_patches),
        batch_size=batch_size,
        workers=workers,
        device=device,
        precision=precision,
        is_strict=strict,
        is_overwriting=overwrite,
    )
