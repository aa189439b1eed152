"""`vitrine convert`: weights from one layout to another, with proof."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented
from vitrine.commands.arguments import as_model, as_path, as_paths, as_texts

if TYPE_CHECKING:
    from vitrine.checkpoints.converting import Conversion


@documented
def convert(
    source: Annotated[str | Path, Doc("File, folder, run folder, hub id or URL of weights in any layout")],
    destination: Annotated[Path | str, Doc("Folder, .safetensors file, or .npz file for npz")],
    *,
    to: Annotated[
        Literal[
            "npz",
            "official",
            "hf",
            "timm",
            "torchvision",
            "dinov2",
            "deit3",
            "dinov3",
            "openclip",
            "naflex",
            "vitrine",
        ],
        Doc("Layout to write"),
    ] = "vitrine",
    generation: Annotated[
        Literal["A", "B", "C", "D"],
        Doc(
            "Kind of official .npz: A released, B current code, C big_vision, D big_vision with scanned layers"
        ),
    ] = "A",
    size: Annotated[
        int | None, Doc("Resample the position embeddings for this image height and width in pixels")
    ] = None,
    patch: Annotated[
        int | None,
        Doc("Resize the patch embedding for patches of this height and width in pixels (FlexiViT)"),
    ] = None,
    num_classes: Annotated[
        int | None, Doc("Replace the head by one of zeros for this number of classes")
    ] = None,
    channels: Annotated[int | None, Doc("Adapt the first kernel to this number of input channels")] = None,
    num_heads: Annotated[int | None, Doc("Number of attention heads, if the file does not say")] = None,
    set: Annotated[
        Sequence[str] | None,
        Doc("Value that the file does not contain, such as num_heads=1,2,5,8 [repeatable]"),
    ] = None,
    images: Annotated[
        str | Path | Sequence[str | Path] | None, Doc("Also compare the logits on these images (at most 8)")
    ] = None,
    approximate: Annotated[
        bool, Doc("Convert even if the target uses another GELU than the weights were trained with")
    ] = False,
    check: Annotated[bool, Doc("Compare the logits before and after")] = True,
    overwrite: Annotated[bool, Doc("Replace the destination if it exists")] = False,
) -> "Conversion":
    """Convert weights to the layout of another library, or from it; outputs are compared."""
    source, destination = as_model(source), as_path(destination)
    from vitrine.jobs.convert import convert as convert_weights

    return convert_weights(
        source,
        destination,
        to=to,
        generation=generation,
        image_size=size,
        patch_size=patch,
        num_classes=num_classes,
        channels=channels,
        num_heads=num_heads,
        settings=as_texts(set),
        images=as_paths(images),
        approximate=approximate,
        check_logits=check,
        overwrite=overwrite,
    )
