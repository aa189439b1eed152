"""`vitrine models`: every variant with its cost."""

from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented
from vitrine.commands.arguments import require_above_zero

if TYPE_CHECKING:
    from vitrine.jobs.models import ModelCost

JFT_IMAGES = 303e6  # section 4.1
DEFAULT_EPOCHS = 7  # the shortest of Table 6


@documented
def list_models(
    *,
    size: Annotated[
        int, Doc("Image height and width in pixels; rounded to what the patches of each model can tile")
    ] = 224,
    num_classes: Annotated[int, Doc("Number of classes")] = 1000,
    images: Annotated[float, Doc("Images in the training set (303e6 is JFT)")] = JFT_IMAGES,
    epochs: Annotated[float, Doc("Passes over the training set")] = DEFAULT_EPOCHS,
) -> "list[ModelCost]":
    """List every variant with its parameters, tokens and compute."""
    require_above_zero(size=size, images=images, epochs=epochs)

    from vitrine.jobs.models import model_costs

    return model_costs(image_size=size, num_classes=num_classes, images=images, epochs=epochs)
