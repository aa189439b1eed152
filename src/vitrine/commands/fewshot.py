"""`vitrine fewshot`: how good a model's features are with a few labelled images per class."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_model, as_numbers, as_path

if TYPE_CHECKING:
    from vitrine.jobs.fewshot import FewShotReport


@documented
def fewshot(
    model: options.ModelOrBox = None,
    data: options.Data = None,
    *,
    shots: Annotated[
        str | int | Sequence[int] | None,
        Doc("Examples per class, separated by commas [default: those of 1,5,10,25 that the data has]"),
    ] = None,
    seeds: Annotated[int, Doc("Number of random draws of the examples")] = 3,
    probe: Annotated[
        str,
        Doc(
            "Classifier on the frozen features: ridge (the paper's closed form), knn, logistic or a registered one"
        ),
    ] = "ridge",
    l2: Annotated[
        str | float | Sequence[float] | None,
        Doc(
            "Regularisation, several separated by commas [default: the paper's 1024 for ridge, 1 for logistic]"
        ),
    ] = None,
    neighbours: Annotated[int, Doc("Number of neighbours for knn")] = 20,
    test_fraction: Annotated[float, Doc("Fraction of the images to test on if the data has no splits")] = 0.5,
    size: options.ModelSize = None,
    batch_size: options.BatchAtATime = None,
    workers: options.Readers = 2,
    device: options.Device = "auto",
    precision: options.ModelPrecision = "fp32",
    cache: Annotated[bool, Doc("Cache features, and reuse cached ones")] = True,
    cache_dir: Annotated[
        Path | str | None, Doc("Folder for cached features [default: the user's cache folder]")
    ] = None,
    out: Annotated[
        Path | str | None, Doc("Folder to save the model solved on the most masks in (data with masks only)")
    ] = None,
) -> "FewShotReport | Any":  # for data with masks a `PixelShotsReport`
    """Measure accuracy with 1, 5, 10, 25 examples per class on frozen features, over several draws.

    For data with masks, measure mean IoU with that many masks; the pixel classifier is solved in closed form.
    """
    from vitrine.jobs.fewshot import evaluate_fewshot

    return evaluate_fewshot(
        as_model(model),
        None if data is None else str(data),
        shots=as_numbers(shots),
        seeds=seeds,
        probe=probe,
        l2=as_numbers(l2),
        neighbours=neighbours,
        test_fraction=test_fraction,
        image_size=size,
        batch_size=batch_size,
        workers=workers,
        device=device,
        precision=precision,
        out=as_path(out),
        cache=(as_path(cache_dir) or True) if cache else False,
    )
