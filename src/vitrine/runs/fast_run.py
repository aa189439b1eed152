"""A run without training: the head is solved in closed form, on all images, and saved like that of any other run."""

import numpy as np
import torch

from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError
from vitrine.evaluation.calibration import CalibrationFit, calibration_error
from vitrine.evaluation.closed_form import ClosedForm
from vitrine.evaluation.metrics import wilson_interval
from vitrine.evaluation.outputs import Outputs, run_model
from vitrine.objectives.classification import LossKind, classification_loss, num_correct
from vitrine.recipes.recipe import Recipe
from vitrine.runs.left_out import write_left_out
from vitrine.runs.records import Execution, RunOutput, StartingModel, TrainingResult
from vitrine.runs.run_data import RunData
from vitrine.runs.run_end import measure_trust, save_model, save_statistics
from vitrine.runs.run_outcome import with_report, write_scores
from vitrine.runs.run_report import LEFT_OUT_NOTE, write_report
from vitrine.runs.run_start import exclusive, write_records
from vitrine.runs.run_trust import LeftOut
from vitrine.runs.solved_head import with_solved_head
from vitrine.runtime.log_file import logged_to
from vitrine.runtime.processes import joined_processes, on_first_process
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import printable


def fast_run(
    start: StartingModel, data: RunData, recipe: Recipe, *, execution: Execution, output: RunOutput
) -> TrainingResult:
    """Solve the head on the training images, and save the model; leaving out one image at a time gives its score.

    If the data has a validation split, the model is scored on it.
    """
    folder = output.folder
    with (
        joined_processes(execution.device) as processes,
        exclusive(folder, processes),
        logged_to(folder, is_first=processes.is_first),
    ):
        start, solved = with_solved_head(
            start, data.train, is_balanced=recipe.is_balanced, workers=execution.workers, processes=processes,
            seed=recipe.training.seed,
        )  # fmt: skip
        if solved is None:
            raise ConfigError(
                "the closed form needs a model with trained weights and a single head", option="fast"
            )
        source, outputs = evidence_of(start, solved, data, workers=execution.workers, device=processes.device)
        scores, calibration = scored(outputs, source), calibration_of(solved, data.train)

        def write() -> None:
            write_records(start, data, recipe, execution=execution, output=output, is_fast=True)
            write_scores(folder, {0: scores})
            save_model(
                start.model.cpu(), start, data, recipe, folder=folder, calibration=calibration,
                accuracy=scores["accuracy"],
            )  # fmt: skip
            if data.validation is None:
                write_left_out(folder, outputs, source)

        on_first_process(write, processes)
        save_statistics(
            start.model, start, data, folder=folder, workers=execution.workers, processes=processes
        )
        if output.measures_trust:
            left_out = LeftOut(logits=outputs.rows) if data.validation is None else None
            measure_trust(folder, data, execution=execution, processes=processes, left_out=left_out)
        report = write_report(
            folder, splits={"val": source}, outputs=outputs, device=processes.device, workers=execution.workers,
            notes=[LEFT_OUT_NOTE] if data.validation is None else [],
        )  # fmt: skip
    result = described(
        start, data, folder=folder, scores=scores, num_images=len(source), calibration=calibration
    )
    return with_report(result, report)


def evidence_of(
    start: StartingModel, solved: ClosedForm, data: RunData, *, workers: int, device: torch.device
) -> tuple[Source, Outputs]:
    """Return the images that the model is scored on and its outputs: the validation split, or each image left out."""
    if data.validation is None:
        return data.train, Outputs(rows=solved.left_out_logits.float(), failures={})
    outputs = run_model(
        start.model, data.validation, preprocess=start.preprocess, num_workers=workers, device=device
    )
    return data.validation, outputs


def described(
    start: StartingModel,
    data: RunData,
    *,
    folder: RunFolder,
    scores: dict[str, float],
    num_images: int,
    calibration: CalibrationFit,
) -> TrainingResult:
    """Describe the finished run."""
    return TrainingResult(
        folder=folder.path,
        model=folder.model,
        steps=0,
        accuracy=scores["accuracy"],
        best_step=0,
        interval=wilson_interval(scores["accuracy"], num_images),
        num_validation=num_images,
        is_left_out=data.validation is None,
        images_per_second=0.0,
        evaluation=scores,
        closed_form=start.closed_form,
        calibration=calibration.to_json(),
        skipped=data.files.skipped,
        data=printable(data.address),
    )


def scored(outputs: Outputs, source: Source) -> dict[str, float]:
    """Return loss and accuracy of logits on a labelled split."""
    rows = np.flatnonzero(outputs.readable)
    logits, targets = outputs.rows[torch.from_numpy(rows)], torch.from_numpy(source.targets(rows)).long()
    kind: LossKind = "sigmoid" if targets.ndim == 2 else "softmax"
    return {
        "loss": float(classification_loss(logits, targets, kind=kind).double().mean()),
        "accuracy": float(num_correct(logits, targets)) / len(targets),
    }


def calibration_of(solved: ClosedForm, train: Source) -> CalibrationFit:
    """Describe the calibration of a closed form, which left-out images have fitted."""
    targets = torch.from_numpy(train.targets(np.arange(len(train)))).long()
    logits = solved.left_out_logits.float()
    return CalibrationFit(
        temperature=1 / solved.sharpness,
        num_images=len(targets),
        ece_before=calibration_error(logits / solved.sharpness, targets),
        ece_after=calibration_error(logits, targets),
    )
