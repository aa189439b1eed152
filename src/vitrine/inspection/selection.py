"""The patch, layer and class that a user selects, from text to indices."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitrine.errors import ConfigError
from vitrine.inspection.filters import PAPER_COUNT
from vitrine.inspection.heads import patch_number
from vitrine.models import Model, ViT
from vitrine.models.config import checked_layer
from vitrine.spelling import nearest


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A patch, a layer and a class, each by index; None to choose from the results."""

    patch: tuple[int, int] | None = None
    layer: int | None = None
    target: int | None = None
    num_components: int = PAPER_COUNT


def check_selection(model: Model, selection: Selection, *, image_size: tuple[int, int]) -> None:
    """Refuse a patch, layer or class that the model does not have, before any work."""
    if not isinstance(model, ViT):
        if selection.patch is not None or selection.layer is not None or selection.target is not None:
            raise ConfigError(
                "a BiT ResNet has no patches, layers or class attention to choose; leave the options out"
            )
        return
    if selection.layer is not None:
        checked_layer(selection.layer, model.config.depth)
    if selection.patch is not None:
        down, across = model.config.token_stride
        patch_number(selection.patch, (image_size[0] // down, image_size[1] // across))


def parse_patch(text: str) -> tuple[int, int]:
    """Read a row and a column with a comma between."""
    try:
        row, column = (int(number) for number in text.split(","))
    except ValueError:
        raise ConfigError(f"must be a row and a column, such as 3,7, got {text!r}", option="patch") from None
    return row, column


def find_class(wanted: str, model: Model, *, classes: Sequence[str]) -> int:
    """Return a class's index from its name or its index."""
    num_classes = model.config.num_classes
    if num_classes is None:
        raise ConfigError(f"the model has no head, so it has no class {wanted!r}", option="class_")
    if wanted in classes:
        return list(classes).index(wanted)
    if wanted.isdecimal() and int(wanted) < num_classes:
        return int(wanted)
    near = f"; did you mean {nearest(wanted, classes)[0]!r}?" if classes else ""
    raise ConfigError(f"the model has no class {wanted!r} among its {num_classes}{near}")
