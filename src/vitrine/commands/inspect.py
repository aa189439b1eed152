"""`vitrine inspect`: filters, positions, attention and tokens of a model, as figures, arrays and one page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import BOX, as_model, as_path, as_texts, require_at_least

if TYPE_CHECKING:
    from vitrine.jobs.inspect import InspectResult


@documented
def inspect(
    model: Annotated[
        str | Path, Doc("Run folder, weights file, hub id or variant name [default: the bundled model]")
    ] = BOX,
    images: Annotated[
        str | Path | Sequence[str | Path] | None,
        Doc("Files, folders, patterns, or one data set; without images, only figures that need none"),
    ] = None,
    *,
    out: Annotated[
        Path | str | None,
        Doc("Folder for figures, arrays and the page [default: a new dated folder under ./runs]"),
    ] = None,
    count: Annotated[int, Doc("Number of images to average over, spread evenly over the given ones")] = 128,
    show: Annotated[int, Doc("Number of images with figures of their own")] = 6,
    components: Annotated[int, Doc("Number of principal components of the filters to draw")] = 28,
    patch: Annotated[
        str | None, Doc("Row,column of the patch whose attention is drawn [default: the centre]")
    ] = None,
    layer: Annotated[
        int | None, Doc("Layer of tokens and patch attention, from 0 [default: the last]")
    ] = None,
    class_: Annotated[
        str | None,
        Doc("Class for the gradients, by name or number [default: the prediction of each image]"),
    ] = None,
    size: options.ModelSize = None,
    workers: options.Readers = 2,
    device: options.Device = "auto",
    overwrite: Annotated[bool, Doc("Replace the figures in the output folder")] = False,
) -> "InspectResult":
    """Look inside a model: filters, positions, attention distance, rollout, heads, tokens, layers."""
    require_at_least(1, count=count, components=components)
    require_at_least(0, show=show)

    from vitrine.jobs.inspect import inspect_model

    return inspect_model(
        as_model(model),
        as_texts(images),
        out=as_path(out),
        count=count,
        num_shown=show,
        num_components=components,
        patch=patch,
        layer=layer,
        class_name=class_,
        image_size=size,
        workers=workers,
        device=device,
        is_overwriting=overwrite,
    )
