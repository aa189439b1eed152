"""`vitrine export`: a model in another format, with proof that it computes the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import BOX, as_model, as_path, as_texts, require_at_least

if TYPE_CHECKING:
    from vitrine.jobs.export import ExportResult


@documented
def export(
    model: options.ModelOrBox = None,
    *,
    to: Annotated[
        Literal[
            "onnx",
            "web",
            "triton",
            "transformers.js",
            "torch-export",
            "hf",
            "timm",
            "torchvision",
            "npz",
            "executorch",
            "litert",
            "coreml",
        ],
        Doc("Format to write"),
    ] = "onnx",
    out: Annotated[
        Path | str | None, Doc("Folder for the export [default: a new dated folder under ./runs]")
    ] = None,
    images: Annotated[
        str | Path | Sequence[str | Path] | None,
        Doc("Files, folders or patterns of images to compare the outputs on [default: generated images]"),
    ] = None,
    count: Annotated[int, Doc("Number of the given images to compare, spread evenly")] = 32,
    fp16: Annotated[bool, Doc("Also write a copy in half precision (onnx)")] = False,
    int8: Annotated[
        bool, Doc("Also write a copy with 8-bit matrix products (onnx); the page's only one (web)")
    ] = False,
    calibrate: Annotated[
        str | Path | Sequence[str | Path] | None,
        Doc(
            "Images, such as training photos, to fix the ranges of one more 8-bit copy on, for OpenVINO (onnx)"
        ),
    ] = None,
    allow_loss: Annotated[
        bool, Doc("Keep an 8-bit copy that is slower than fp32 or loses more than one point of top-1")
    ] = False,
    data: Annotated[
        str | Path | None, Doc("Labelled data set to measure top-1 accuracy of each precision on")
    ] = None,
    split: Annotated[
        str | None,
        Doc("Split of the data [default: test, else val, else the images that the run held out, else all]"),
    ] = None,
    by_order: Annotated[bool, Doc("Match the classes of the data by order instead of by name")] = False,
    size: options.ModelSize = None,
    approximate: Annotated[
        bool, Doc("Export even if the target uses another GELU than the weights were trained with")
    ] = False,
    speed: Annotated[bool, Doc("Compare the speed of the export with torch")] = True,
    workers: options.Readers = 2,
    onnxruntime_web: Annotated[
        Path | str | None,
        Doc("Unpacked npm package onnxruntime-web for the page [default: downloaded once]"),
    ] = None,
    overwrite: Annotated[bool, Doc("Replace the export in the output folder")] = False,
) -> "ExportResult":
    """Export a model to run it in onnxruntime, a web page, torch, transformers and others; outputs are compared."""
    require_at_least(1, count=count)

    from vitrine.jobs.export import ExportWish, export_model

    return export_model(
        as_model(model or BOX),
        wish=ExportWish(
            to=to,
            fp16=fp16,
            int8=int8,
            calibrate=as_texts(calibrate),
            allows_loss=allow_loss,
            is_approximate=approximate,
            onnxruntime_web=as_path(onnxruntime_web),
        ),
        out=as_path(out),
        images=as_texts(images),
        count=count,
        data=None if data is None else str(data),
        split=split,
        is_by_order=by_order,
        image_size=size,
        measures_speed=speed,
        workers=workers,
        is_overwriting=overwrite,
    )
