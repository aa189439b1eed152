"""`vitrine evaluate`: how good a model is on a test set, with intervals, and where it goes wrong."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_image_size, as_model, as_path

if TYPE_CHECKING:
    from vitrine.jobs.evaluate import EvaluateResult


@documented
def evaluate(
    model: options.ModelOrBox = None,
    data: options.Data = None,
    *,
    split: Annotated[
        str | None,
        Doc("Split to evaluate on [default: test, else val, else all images of data without splits]"),
    ] = None,
    real: Annotated[
        Path | str | None, Doc("ReaL's real.json: also score ImageNet with every acceptable label")
    ] = None,
    out: Annotated[
        Path | str | None,
        Doc("Folder for the report and the predictions [default: a new dated folder under ./runs]"),
    ] = None,
    by_order: Annotated[bool, Doc("Match classes by order instead of by name")] = False,
    views: Annotated[
        str | None,
        Doc("Also score the mean over several views of each image: flip (2 views) or flip-shift (6)"),
    ] = None,
    size: options.ModelSize = None,
    patch: options.Patch = None,
    max_patches: options.MaxPatches = None,
    batch_size: options.BatchAlone = None,
    workers: options.Decoders = None,
    device: options.Device = "auto",
    precision: options.PrecisionWish = "auto",
    seed: Annotated[int, Doc("Seed of the bootstrap for the intervals")] = 0,
    strict: Annotated[bool, Doc("Exit with 1 if any file cannot be read")] = False,
    overwrite: Annotated[bool, Doc("Replace the results in the output folder")] = False,
) -> "EvaluateResult | Any":  # also `ObjectNetEvaluation`, `MaskEvaluation`, `DetectionEvaluation`, ...
    """Measure accuracy, calibration and confusion with 95 % intervals, and show the mistakes.

    On ObjectNet (objectnet:/path/to/objectnet-1.0), an ImageNet model is scored as in the paper's appendix D.9.
    A model of masks gets mean IoU; a model of boxes, COCO's numbers. Also scores the predictions of other tools: COCO
    results against COCO annotations (detections.json annotations.json), or a folder of mask PNGs against another. The
    parts that `predict` wrote of labelled pictures (a folder, here or at an address) are scored in bounded memory.
    """
    from vitrine.jobs.evaluate import evaluate_model

    return evaluate_model(
        as_model(model),
        None if data is None else str(data),
        split=split,
        real=as_path(real),
        out=as_path(out),
        by_order=by_order,
        views=views,
        image_size=as_image_size(size, patch=patch, max_patches=max_patches),
        batch_size=batch_size,
        workers=workers,
        device=device,
        precision=precision,
        seed=seed,
        is_strict=strict,
        is_overwriting=overwrite,
    )
