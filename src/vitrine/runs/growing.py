"""Add classes to a finished model from photos of the new classes alone; the old ones are kept by their statistics.

Shapes: N new images, R features, K classes, old and new.
"""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrine.checkpoints import Loaded, load, save
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError, TryVerb
from vitrine.evaluation.calibration import CalibrationFit, calibrated_rows
from vitrine.evaluation.class_statistics import FILE, ClassStatistics
from vitrine.evaluation.closed_form_candidates import folds_of
from vitrine.evaluation.features import extract_features
from vitrine.evaluation.metrics import wilson_interval
from vitrine.evaluation.outputs import Outputs
from vitrine.models import Model, build
from vitrine.recipes.recipe import Recipe
from vitrine.recipes.recipe_values import as_values
from vitrine.runs.records import Execution, RunOutput, StartingModel, TrainingResult
from vitrine.runs.run_data import RunData
from vitrine.runs.run_start import exclusive, write_records
from vitrine.runtime.find_run import run_of_model
from vitrine.runtime.log_file import logged_to
from vitrine.runtime.processes import Processes, joined_processes, on_first_process
from vitrine.spelling import printable, some_of


def open_growing(model: str) -> tuple[Loaded, ClassStatistics]:
    """Load a model with the statistics of its classes; refuse one without."""
    loaded, folder = load(model), run_of_model(model)
    file = (Path(model) if folder is None else folder.model) / FILE
    if loaded.classes is None or not file.is_file():
        raise ConfigError(
            f"{model} has no statistics of its classes ({FILE}), which fine-tuning saves beside the model",
            option="keep_classes",
            advice=[TryVerb("finetune", ("DATA",), "to create a model that can grow", {"fast": True})],
        )
    return loaded, ClassStatistics.read(file)


def grow_run(
    loaded: Loaded,
    known: ClassStatistics,
    data: RunData,
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
) -> TrainingResult:
    """Solve a head for the old and the new classes, and save it with the model as a run; nothing else changes."""
    assert loaded.classes is not None
    folder, train = output.folder, data.train
    if shared := sorted(set(loaded.classes) & set(train.classes)):
        raise DataError(
            f"the model has these classes already: {some_of(shared)}; remove their photos, or fine-tune on all photos"
        )
    classes = (*loaded.classes, *train.classes)
    with (
        joined_processes(execution.device) as processes,
        exclusive(folder, processes),
        logged_to(folder, is_first=processes.is_first),
    ):
        features, labels = features_of(loaded, train, workers=execution.workers, processes=processes)
        left_out = left_out_logits(known, features, labels, num_new=len(train.classes))
        own = labels + len(loaded.classes)
        _, fit = calibrated_rows(Outputs(rows=left_out, failures={}), own)
        accuracy = float((left_out.argmax(dim=1) == own).double().mean())
        everything = known.followed_by(ClassStatistics.of(features, labels, num_classes=len(train.classes)))
        model = with_head(loaded.model.cpu(), everything, fit)

        def write() -> None:
            start = StartingModel(model=model, preprocess=loaded.preprocess, licence=loaded.record.licence)
            write_records(start, data, recipe, execution=execution, output=output)
            folder.write_classes(classes)
            save(
                model, folder.model, preprocess=loaded.preprocess, classes=classes, recipe=as_values(recipe),
                calibration=fit.to_json(), licence=loaded.record.licence, overwrite=True,
            )  # fmt: skip
            everything.write(folder.model / FILE)

        on_first_process(write, processes)
    return TrainingResult(
        folder=folder.path,
        model=folder.model,
        steps=0,
        accuracy=accuracy,
        best_step=0,
        interval=wilson_interval(accuracy, len(train)),
        num_validation=len(train),
        num_kept_classes=len(loaded.classes),
        is_left_out=True,
        images_per_second=0.0,
        calibration=fit.to_json(),
        skipped=data.files.skipped,
        data=printable(data.address),
    )


def features_of(
    loaded: Loaded, train: Source, *, workers: int, processes: Processes
) -> tuple[Tensor, Tensor]:
    """Return features (N, R) and labels (N,) of the new images."""
    features = extract_features(
        loaded.model.to(processes.device), train, preprocess=loaded.preprocess, num_workers=workers,
        device=processes.device,
    )  # fmt: skip
    return features.rows, torch.from_numpy(features.labels.astype(np.int64))


def left_out_logits(known: ClassStatistics, features: Tensor, labels: Tensor, *, num_new: int) -> Tensor:
    """Score each new image among all classes (N, K) by a head that was solved without it."""
    scores = torch.zeros(len(features), len(known.counts) + num_new)
    for rest, fold in folds_of(labels, seed=0):
        new = ClassStatistics.of(features[rest], labels[rest], num_classes=num_new)
        weight, bias = known.followed_by(new).head()
        scores[fold] = (features[fold].double() @ weight.T + bias).float()
    return scores


def with_head(model: Model, statistics: ClassStatistics, fit: CalibrationFit) -> Model:
    """Return the model with the calibrated head of these classes; all other weights are the same."""
    weight, bias = statistics.head()
    config = dataclasses.replace(model.config, num_classes=len(weight))
    grown = build(config)
    kept = {name: value for name, value in model.state_dict().items() if not name.startswith("head.")}
    head = {"head.weight": (weight / fit.temperature).float(), "head.bias": (bias / fit.temperature).float()}
    grown.load_state_dict({**kept, **head})
    return grown.eval()
