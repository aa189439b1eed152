"""A run whose labels are numbers: ridge regression on the features of a model, saved as a model with one output.

The network is not trained; the strength of the ridge is chosen, and its errors are measured, on images that were
left out one at a time. The normalisation and the unit of the numbers are part of the head, so every reader of the
model and every export predicts the number itself.

Shapes: N images, R features.
"""

import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrine.checkpoints import save
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.features import extract_features
from vitrine.evaluation.number_line import NumberFigures, NumberLine, Numbers, fit_number_line, score_numbers
from vitrine.evaluation.trust import Trust, write_trust
from vitrine.recipes.recipe import Recipe
from vitrine.recipes.recipe_values import as_values
from vitrine.reports.number_page import render_numbers
from vitrine.reports.pages import write_page
from vitrine.runs.records import Execution, RunOutput, StartingModel, TrainingResult
from vitrine.runs.run_data import RunData
from vitrine.runs.run_outcome import write_scores
from vitrine.runs.run_start import exclusive, write_records
from vitrine.runs.solved_head import can_solve_head
from vitrine.runtime.log_file import logged_to
from vitrine.runtime.processes import Processes, joined_processes, on_first_process
from vitrine.spelling import printable


def number_run(
    start: StartingModel, data: RunData, recipe: Recipe, *, execution: Execution, output: RunOutput
) -> TrainingResult:
    """Fit the numbers of the training images and save the model; score it on validation images or left-out ones."""
    if not can_solve_head(start):
        raise ConfigError(
            "numbers are learned with a model that has trained weights and a single head", option="model"
        )
    folder, began = output.folder, time.monotonic()
    with (
        joined_processes(execution.device) as processes,
        exclusive(folder, processes),
        logged_to(folder, is_first=processes.is_first),
    ):
        features, values = measured(start, data.train, execution=execution, processes=processes)
        line = fit_number_line(features, torch.from_numpy(values))
        source, predicted, true = data.train, values - line.left_out_errors.numpy(), values
        if data.validation is not None:
            source = data.validation
            rows, true = measured(start, source, execution=execution, processes=processes)
            predicted = line(rows).numpy()
        half = line.half_width()
        figures = score_numbers(
            predicted, true, name=data.train.classes[0], half_width=None if math.isinf(half) else half
        )

        def write() -> Path:
            write_records(start, data, recipe, execution=execution, output=output)
            write_scores(folder, {0: {"mean_absolute_error": figures.mean_absolute_error, "r2": figures.r2}})
            save_numbers(start, data, recipe, line, figures, to=folder.model)
            page = render_numbers(
                source, predicted, true, figures, title="Numbers from pictures", model=str(folder),
                is_left_out=data.validation is None,
            )  # fmt: skip
            return write_page(folder.report_file, page)

        report = on_first_process(write, processes)
    return TrainingResult(
        folder=folder.path,
        model=folder.model,
        steps=0,
        accuracy=None,
        interval=None,
        num_validation=len(source),
        is_left_out=data.validation is None,
        images_per_second=0.0,
        seconds=time.monotonic() - began,
        number=figures,
        skipped=data.files.skipped,
        report=report,
        data=printable(data.address),
    )


def measured(
    start: StartingModel, source: Source, *, execution: Execution, processes: Processes
) -> tuple[Tensor, Numbers]:
    """Return features (N, R) and numbers (N,) of all images."""
    features = extract_features(
        start.model.to(processes.device), source, preprocess=start.preprocess, num_workers=execution.workers,
        device=processes.device,
    )  # fmt: skip
    if features.failures:
        raise DataError(f"cannot read an image: {next(iter(features.failures.values()))}")
    assert source.values is not None
    return features.rows, source.values.astype(np.float64)


@torch.no_grad()
def save_numbers(
    start: StartingModel, data: RunData, recipe: Recipe, line: NumberLine, figures: NumberFigures, *, to: Path
) -> None:
    """Save the model with the ridge as its head, and the left-out errors beside it for ranges of any coverage."""
    model = start.model.cpu()
    assert model.head is not None
    weight, bias = line.head()
    model.head.weight.copy_(weight)
    model.head.bias.copy_(bias)
    number = {
        "name": figures.name,
        "mean_absolute_error": figures.mean_absolute_error,
        "r2": figures.r2,
        "num_images": figures.num_images,
        "half_width": figures.half_width,
    }
    save(
        model, to, preprocess=start.preprocess, classes=list(data.train.classes), recipe=as_values(recipe),
        number=number, licence=start.licence, overwrite=True,
    )  # fmt: skip
    write_trust(to, Trust(errors=line.left_out_errors))
