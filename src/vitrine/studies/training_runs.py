"""One run of a study: train as `pretrain` and `finetune` do, then measure; or measure speed.

A run that was stopped resumes from its last checkpoint.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vitrine.checkpoints import load
from vitrine.checkpoints.adapting import with_num_classes
from vitrine.checkpoints.weights import ModelWeights, fill_model
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import Model, build
from vitrine.models.cost import cost_of
from vitrine.objectives import DistillationObjective
from vitrine.recipes import Recipe
from vitrine.runs.records import Execution, RunOutput, StartingModel
from vitrine.runs.run_data import RunData
from vitrine.runs.starting_model import load_teacher
from vitrine.runs.train_run import steps_done, train_run
from vitrine.runtime.devices import choose_device
from vitrine.runtime.progress import quiet
from vitrine.runtime.run_folder import RunFolder
from vitrine.studies.datasets import StudyData, part_of, splits_of
from vitrine.studies.estimate import exaflops_of
from vitrine.studies.measures import accuracy_of, measure_model, measure_speed
from vitrine.studies.record import Run
from vitrine.training.graphs import RecordingError
from vitrine.training.saving import newest_state


@dataclass(frozen=True, kw_only=True)
class Place:
    """Folders, data and device of all runs."""

    sets: Mapping[str, Mapping[str, StudyData]] = field(default_factory=dict)
    """The data and the targets, by the name of the run's data set (empty if a call has only one)."""
    device: str = "auto"
    jobs: int = 1
    """Processes that share the cores."""
    workers: int = 2
    """Data-loading workers for sets that are not held in memory."""


def carry_out_run(run: Run, place: Place) -> dict[str, Any]:
    """Execute one run and return the measured fields of its result line."""

    if place.jobs > 1:
        torch.set_num_threads(max(available_threads() // place.jobs, 1))
    device = choose_device(place.device)
    began = time.monotonic()
    cost = cost_of(run.model)
    if run.recipe.training.compiles_on(device.type):
        # What this process compiled for earlier models counts towards a limit, beyond which nothing is compiled.
        torch.compiler.reset()
    with quiet():
        if run.work == "speed":
            outcome: dict[str, Any] = {"measures": measure_speed(run, device), "steps": 0, "num_images": 0}
        else:
            outcome = trained_and_measured(run, place, device)
    if device.type == "cuda":  # other processes cannot use memory that this one has cached
        torch.cuda.empty_cache()
    return {
        **outcome,
        "params": cost.params,
        "macs": cost.macs,
        "exaflops": exaflops_of(run, outcome["steps"]),
        "seconds": round(time.monotonic() - began, 3),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


@functools.cache
def available_threads() -> int:
    """Return how many threads torch would use in a process of its own; OMP_NUM_THREADS decides if it is set."""

    return torch.get_num_threads()


def trained_and_measured(run: Run, place: Place, device: torch.device) -> dict[str, Any]:
    """Train from the run's starting weights or its last checkpoint, then evaluate the best weights."""
    assert run.folder is not None
    sets, size = place.sets[run.on], run.model.image_size
    data = sets[run.data]
    splits = splits_of(data, size[0])
    preprocess = Preprocess(size=size)
    train_part = part_of(splits["train"], run.num_images, seed=run.seed)
    folder = RunFolder(run.folder)
    resumed_at = steps_done(newest_state(folder.last_checkpoint))
    # Without evaluations during training, the last weights are measured.
    is_evaluated = bool(run.recipe.training.evaluate_every) and run.recipe.needs_labels and "val" in splits
    held_out = {"val": splits["val"]} if is_evaluated else {}

    def evaluate(model: nn.Module) -> dict[str, float]:
        """Evaluate on images that are already on the device."""
        return {"accuracy": accuracy_of(model, splits["val"], preprocess=preprocess, device=device)}

    def trained(recipe: Recipe) -> None:
        model = first_weights(run)
        train_run(
            StartingModel(model=model, preprocess=preprocess, teacher=load_teacher(recipe, model.config)),
            RunData(address=data.address, splits={"train": train_part, **held_out}),
            recipe,
            execution=Execution(device=place.device, workers=place.workers),
            output=RunOutput(folder=folder, verb="study", plans=False, reports=False, measures_trust=False),
            resume_from=newest_state(folder.last_checkpoint),
            evaluate=evaluate if is_evaluated else None,
        )

    launched = trained_or_launched(trained, with_teacher(run))
    measures = {}
    if run.role != "preparation":
        model = load(folder.model).model.to(device).eval()
        measures = measure_model(model, run, sets, preprocess=preprocess)
    return {
        "measures": measures,
        "steps": steps_done(newest_state(folder.last_checkpoint)),
        "num_images": len(train_part),
        "resumed_at": resumed_at,
        "launched": launched,
    }


def trained_or_launched(train: Callable[[Recipe], None], recipe: Recipe) -> str:
    """Train; if a step cannot be recorded, train without recording and return the reason for the run's record."""
    try:
        train(recipe)
    except RecordingError as error:
        reason = error.problem
    else:
        return ""
    train(dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, graphs=False)))
    return reason


def with_teacher(run: Run) -> Recipe:
    """Return the run's recipe; if the previous run is the teacher, with the path of its weights."""
    if run.uses != "teacher" or run.before is None:
        return run.recipe
    objective = run.recipe.objective
    assert isinstance(objective, DistillationObjective)
    weights = str(RunFolder(run.before).model)
    return dataclasses.replace(run.recipe, objective=dataclasses.replace(objective, teacher=weights))


def first_weights(run: Run) -> Model:
    """Build the model: fresh, or with the weights of the previous run, a new head and resampled positions."""

    torch.manual_seed(run.seed)
    fresh = build(run.model)
    if run.before is None or run.uses == "teacher":
        return fresh
    before = load(RunFolder(run.before).model, image_size=run.model.image_size)
    # The head is new even if the classes are the same (section 3.2).
    weights, _ = with_num_classes(ModelWeights(before.model), run.model.num_classes)
    model = build(run.model)
    tensors = fill_model(weights).state_dict()
    if not run.keeps_positions:
        tensors |= {
            name: value for name, value in fresh.state_dict().items() if name.startswith("positions.")
        }
    model.load_state_dict(tensors)
    return model
