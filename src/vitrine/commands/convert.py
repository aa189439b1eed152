"""`vitrine convert`: weights from one layout to another, with proof."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

if TYPE_CHECKING:
    from vitrine.checkpoints.converting import Conversion


def convert(
    source: Annotated[str, Doc("A file, folder, run folder, hub id or URL of weights in any layout.")],
    destination: Annotated[Path, Doc("A folder, a .safetensors file, or for npz an .npz file.")],
    *,
    to: Annotated[
        Literal["npz", "hf", "timm", "torchvision", "dinov2", "vitrine"], Doc("The layout to write.")
    ] = "vitrine",
    generation: Annotated[
        Literal["A", "B", "C", "D"],
        Doc(
            "Which official .npz: A released, B current code, C big_vision, D big_vision with scanned layers."
        ),
    ] = "A",
    size: Annotated[int | None, Doc("Resample the positions for this image height and width.")] = None,
    num_classes: Annotated[int | None, Doc("Put in a new head of zeros for so many classes.")] = None,
    channels: Annotated[int | None, Doc("Adapt the first kernel to so many input channels.")] = None,
    num_heads: Annotated[int | None, Doc("Attention heads, for files that do not tell.")] = None,
    images: Annotated[list[Path] | None, Doc("Compare the logits on these images too (up to 8).")] = None,
    approximate: Annotated[
        bool, Doc("Convert also where the target computes another GELU than the weights were trained with.")
    ] = False,
    check: Annotated[bool, Doc("Compare the logits before and after.")] = True,
    overwrite: Annotated[bool, Doc("Replace what is at the destination.")] = False,
) -> "Conversion":
    """Convert weights between layouts and prove that both compute the same."""
    from vitrine.checkpoints.converting import convert as convert_weights

    return convert_weights(
        source,
        destination,
        to=to,
        generation=generation,
        image_size=size,
        num_classes=num_classes,
        channels=channels,
        num_heads=num_heads,
        images=tuple(images or ()),
        approximate=approximate,
        check_logits=check,
        overwrite=overwrite,
    )
