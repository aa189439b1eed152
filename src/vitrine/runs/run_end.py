"""The end of a run: its trained model, the statistics beside it, and its report."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.checkpoints import save
from vitrine.checkpoints.adapters import write_adapter
from vitrine.checkpoints.record import Record
from vitrine.data.sources.source import Source
from vitrine.errors import VitrineError
from vitrine.evaluation.calibration import CalibrationFit, calibrated
from vitrine.evaluation.class_statistics import FILE, ClassStatistics
from vitrine.evaluation.closed_form_candidates import is_right
from vitrine.evaluation.familiarity import false_alarms
from vitrine.evaluation.features import extract_features
from vitrine.evaluation.metrics import wilson_interval
from vitrine.evaluation.outputs import Outputs, run_model
from vitrine.evaluation.temperature import divide_head
from vitrine.models import Model, ModelConfig, build
from vitrine.models.lora import adapters_of, add_adapters, merge_adapters
from vitrine.recipes.recipe import Recipe
from vitrine.recipes.recipe_values import as_values
from vitrine.runs.mixing import Place, best_place, saved_weights
from vitrine.runs.records import Execution, StartingModel
from vitrine.runs.run_data import RunData
from vitrine.runs.run_report import RunReport, write_report
from vitrine.runs.run_trust import LeftOut, store_trust
from vitrine.runs.solved_head import softened
from vitrine.runs.validation import SplitValidation
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.runtime.progress import notice
from vitrine.runtime.run_folder import RunFolder
from vitrine.training.saving import newest_state, weights_of
from vitrine.training.task import Outcome


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The saved model, and the candidates that it was chosen from."""

    outputs: Outputs | None = None
    """Calibrated logits on the validation images; None without any."""
    calibration: CalibrationFit | None = None
    accuracy: float | None = None
    share: float | None = None
    """Share of the trained weights in the saved ones, from 0 (the closed form) to 1; None without a choice."""


def finish_model(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    validation: SplitValidation | None,
    *,
    folder: RunFolder,
    execution: Execution,
    processes: Processes,
    outcome: Outcome,
) -> Finished:
    """Choose the best weights, calibrate and save them; the same images choose and calibrate.

    The outputs of the best evaluation are used as they are; only a run that was resumed after it evaluates again.
    """
    model = trained_model(start.model.config, recipe, folder)
    keep = functools.partial(
        save_statistics, start=start, data=data, folder=folder, workers=execution.workers, processes=processes
    )
    if validation is None or not recipe.objective.classifies:
        on_first_process(lambda: save_model(model, start, data, recipe, folder=folder), processes)
        if recipe.solves_head:
            keep(model)
        return Finished(accuracy=outcome.best)
    outputs, accuracy, share = validation.best, outcome.best, None
    if outputs is None:
        outputs = run_model(
            model.to(processes.device), validation.source, preprocess=start.preprocess,
            num_workers=execution.workers, device=processes.device, what="Evaluating the model",
        )  # fmt: skip
        model = model.cpu()
    if folder.closed_form.exists():
        place = chosen_place(
            start, recipe, validation, outputs, folder=folder, execution=execution, processes=processes,
            is_start=outcome.best_step == 0,
        )  # fmt: skip
        model, outputs, share = place.model, place.outputs, place.share
        accuracy = accuracy_of(outputs, validation.source)
    outputs, calibration = calibrated(outputs, validation.source)
    divide_head(model, calibration.temperature)
    on_first_process(
        lambda: save_model(
            model, start, data, recipe, folder=folder, calibration=calibration, accuracy=accuracy
        ),
        processes,
    )
    if recipe.solves_head:
        keep(model)
    return Finished(outputs=outputs, calibration=calibration, accuracy=accuracy, share=share)


def chosen_place(
    start: StartingModel,
    recipe: Recipe,
    validation: SplitValidation,
    outputs: Outputs,
    *,
    folder: RunFolder,
    execution: Execution,
    processes: Processes,
    is_start: bool,
) -> Place:
    """Choose the closed form, the trained weights or a mix; `outputs` are those of the better of the first two."""
    prefix = recipe.objective.weights_prefix
    state = newest_state(folder.last_checkpoint if is_start else folder.best_checkpoint)
    assert state is not None
    last = without_prefix(weights_of(state), prefix)
    known = {0.0 if is_start else 1.0: outputs}
    return best_place(
        softened(saved_weights(folder.closed_form)), last, known, config=start.model.config, source=validation.source,
        preprocess=start.preprocess, workers=execution.workers, processes=processes,
    )  # fmt: skip


def accuracy_of(outputs: Outputs, source: Source) -> float:
    """Return the share of images whose most likely class is their label, or one of several."""
    targets = torch.from_numpy(source.targets(np.arange(len(source)))).long()
    return float(is_right(outputs.rows, targets).mean())


def save_model(
    model: Model,
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    folder: RunFolder,
    to: Path | None = None,
    calibration: CalibrationFit | None = None,
    accuracy: float | None = None,
) -> None:
    """Save a model with its record; adapters also alone, and then merged."""
    described: dict[str, Any] = {
        "preprocess": start.preprocess,
        "classes": tuple(data.train.classes) if model.config.num_classes else None,
        "recipe": as_values(recipe),
        "calibration": None if calibration is None else calibration.to_json(),
        "measured": measured_on(data, accuracy),
        "licence": start.licence,
    }
    if adapters_of(model):
        assert recipe.model is not None  # fine-tuning names its model
        record = Record(config=model.config, **described)
        write_adapter(model, folder.adapter, base=recipe.model, record=record)
        merge_adapters(model)
    save(model, to or folder.model, **described, overwrite=True)


def save_statistics(
    model: Model,
    start: StartingModel,
    data: RunData,
    *,
    folder: RunFolder,
    workers: int,
    processes: Processes,
) -> None:
    """Save means and spread of the classes' features beside the model, so that classes can be added later."""
    if model.head is None or data.train.is_multi_label:
        return
    features = extract_features(
        model.to(processes.device), data.train, preprocess=start.preprocess, num_workers=workers,
        device=processes.device, what="Measuring the classes",
    )  # fmt: skip
    labels = torch.from_numpy(features.labels.astype(np.int64))
    statistics = ClassStatistics.of(features.rows, labels, num_classes=len(data.train.classes))
    on_first_process(lambda: statistics.write(folder.model / FILE), processes)


def measured_on(data: RunData, accuracy: float | None) -> dict[str, Any] | None:
    """Return the accuracy as a model's record holds it; None without one, or without one label per image.

    Without a validation split, it is that of the training images, each scored by a fit without it.
    """
    source = data.train if data.validation is None else data.validation
    if accuracy is None or source.is_multi_label:
        return None
    count = len(source)
    return {
        "accuracy": accuracy,
        "interval": list(wilson_interval(accuracy, count)),
        "num_images": count,
        "is_left_out": data.validation is None,
        "false_alarms": false_alarms(count),
    }


def trained_model(config: ModelConfig, recipe: Recipe, folder: RunFolder) -> Model:
    """Build the model with the best weights of a run; the trained module may be sharded over many devices."""
    state = newest_state(folder.best_checkpoint) or newest_state(folder.last_checkpoint)
    assert state is not None
    model = build(config)
    if recipe.training.lora_rank is not None:
        add_adapters(model, rank=recipe.training.lora_rank, alpha=recipe.training.lora_alpha)
    model.load_state_dict(without_prefix(weights_of(state), recipe.objective.weights_prefix))
    return model.eval()


def without_prefix(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights of the model among those of the module that was trained."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def measure_trust(
    folder: RunFolder,
    data: RunData,
    *,
    execution: Execution,
    processes: Processes,
    left_out: LeftOut | None = None,
) -> None:
    """Store the statistics of "none of these" beside the model; if that fails, report why and keep the rest."""
    try:
        store_trust(
            folder.model, data.splits, device=processes.device, workers=execution.workers, left_out=left_out
        )
    except (VitrineError, OSError) as error:
        notice(f'No statistics for "none of these": {error}')


def report_run(
    folder: RunFolder,
    data: RunData | None,
    outputs: Outputs | None,
    *,
    execution: Execution,
    processes: Processes,
    notes: Sequence[str] = (),
) -> RunReport | None:
    """Write the page of a run, with the model's outputs on the validation images; if that fails, report why."""
    try:
        return write_report(
            folder,
            splits=None if data is None else data.splits,
            outputs=outputs,
            device=processes.device,
            workers=execution.workers,
            notes=notes,
        )
    except (VitrineError, OSError) as error:
        notice(f"No report of the run: {error}")
        return None
