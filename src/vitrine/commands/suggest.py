"""`vitrine suggest`: which unlabelled pictures to label next."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_model, as_path, as_pictures
from vitrine.errors import ConfigError

if TYPE_CHECKING:
    from vitrine.jobs.suggest import SuggestResult


@documented
def suggest(
    model: Annotated[
        str | Path | None, Doc("Run folder, weights file or hub id of a model with your classes")
    ] = None,
    pictures: options.Pictures = None,
    *,
    count: Annotated[int, Doc("Number of pictures to suggest")] = 100,
    out: Annotated[
        Path | str | None,
        Doc("Folder for suggestions.html and suggestions.csv [default: a new dated folder under ./runs]"),
    ] = None,
    seed: Annotated[int, Doc("Seed of the draw")] = 0,
    size: options.ModelSize = None,
    batch_size: options.BatchAtATime = None,
    workers: options.Readers = 2,
    device: options.Device = "auto",
    precision: options.ModelPrecision = "fp32",
    overwrite: Annotated[bool, Doc("Replace the suggestions in the output folder")] = False,
) -> "SuggestResult":
    """Suggest the pictures to label next: those that the model is uncertain about and that differ from each other."""
    if count < 1:
        raise ConfigError(f"must be at least 1, got {count}", option="count")

    from vitrine.jobs.suggest import suggest_pictures

    return suggest_pictures(
        as_model(model),
        as_pictures(pictures),
        count=count,
        out=as_path(out),
        seed=seed,
        image_size=size,
        batch_size=batch_size,
        workers=workers,
        device=device,
        precision=precision,
        is_overwriting=overwrite,
    )
