"""The work behind `vitrine vtab`: fine-tune on every task, evaluate on its test set, write table and figure."""

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrine.checkpoints import Loaded, load
from vitrine.data.sources.source import Source
from vitrine.data.sources.vtab.tasks import GROUPS, TASKS, find_task
from vitrine.errors import DataError, MissingExtraError
from vitrine.evaluation.features import weights_hash
from vitrine.evaluation.metrics import Interval, interval_of_share, top_k_correct
from vitrine.evaluation.outputs import run_model
from vitrine.evaluation.vtab.protocol import (
    Attempt,
    FineTune,
    Measure,
    ProtocolName,
    changed_protocol,
    run_vtab,
)
from vitrine.evaluation.vtab.scores import VtabScores
from vitrine.evaluation.vtab.tables import draw_figure, table
from vitrine.jobs.model_argument import model_and_data
from vitrine.recipes import Recipe
from vitrine.recipes.recipe import Views
from vitrine.runs.records import Execution, RunOutput, StartingModel
from vitrine.runs.run_data import RunData
from vitrine.runs.run_start import exclusive
from vitrine.runs.train_run import train_run
from vitrine.runtime.devices import seeded
from vitrine.runtime.files import write_atomically
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.processes import Processes, joined_processes, on_first_process, wait_for_all
from vitrine.runtime.progress import notice
from vitrine.runtime.result import Result
from vitrine.runtime.run_folder import RunFolder
from vitrine.training.config import TrainingConfig

Precision = Literal["auto", "bf16", "fp32"]
# The authors' rule for transfer: resize to 448, crop 384.
RESIZE_RATIO = 448 / 384


@dataclass(frozen=True, kw_only=True, repr=False)
class VtabResult(Result):
    """The scores and the files that hold them."""

    scores: VtabScores
    count: str
    """Number of the 19 tasks that ran."""
    mean: float | None
    """Over all 19 tasks; None if one is missing."""
    group_means: dict[str, float | None]
    wrote: tuple[Path, ...]


def run_tasks(
    model: str | None,
    root: str | None,
    *,
    protocol: ProtocolName,
    tasks: str | None,
    out: Path | None,
    steps: int | None,
    batch_size: int | None,
    image_size: int | None,
    device: str,
    precision: Precision,
    workers: int,
    keeps_models: bool,
) -> VtabResult:
    """Run the tasks whose data is below `root`; `tasks` is a list such as `cifar,dtd`."""
    model, address = model_and_data("vtab", model, root, device=device)
    chosen = TASKS if tasks is None else tuple(find_task(name.strip()) for name in tasks.split(","))
    changed = changed_protocol(protocol, steps=steps, batch_size=batch_size, image_size=image_size)
    identity = weights_hash(load(model).model)
    with joined_processes(device) as processes:
        # A dated name must be the same on all processes.
        folder = on_first_process(
            lambda: new_output_folder(out, verb="vtab", files=(), never_in=[Path(address)]), processes
        )
        execution = Execution(device=device, workers=workers)
        with removed_if_empty(folder), exclusive(RunFolder(folder), processes):
            scores = run_vtab(
                Path(address),
                fine_tune=_fine_tuner(model, execution, processes, precision=precision, keeps=keeps_models),
                measure=_measurer(processes, workers=workers),
                protocol=changed,
                folder=folder,
                identity=identity,
                model=model,
                tasks=chosen,
                is_first=processes.is_first,
            )
            wrote = _write(folder, scores) if processes.is_first else ()
    return VtabResult(
        scores=scores,
        count=scores.count,
        mean=scores.mean,
        group_means={group: scores.group_mean(group) for group in GROUPS},
        wrote=wrote,
    )


def _fine_tuner(
    model: str, execution: Execution, processes: Processes, *, precision: Precision, keeps: bool
) -> FineTune:
    def fine_tune(source: Source, attempt: Attempt, folder: Path) -> object:
        recipe = _recipe(attempt, model=model, precision=precision)
        with seeded(recipe.training.seed):  # a variant's name gives fresh weights
            fresh = load(model, num_classes=len(source.classes), image_size=attempt.image_size)
        # Straight to a square, without a crop: the label may depend on a corner.
        preprocess = dataclasses.replace(fresh.preprocess, rule="squash", crop_fraction=1.0)
        run = RunFolder(folder)
        train_run(
            StartingModel(model=fresh.model, preprocess=preprocess),
            RunData(address=source.address, splits={"train": source}),
            recipe,
            execution=execution,
            output=RunOutput(folder=run, verb="vtab", reports=False, measures_trust=False),
        )
        trained = load(run.model)
        wait_for_all(processes)
        if processes.is_first:
            shutil.rmtree(run.checkpoints, ignore_errors=True)
            if not keeps:
                shutil.rmtree(run.model, ignore_errors=True)
        return trained

    return fine_tune


def _recipe(attempt: Attempt, *, model: str, precision: Precision) -> Recipe:
    views = Views(crop="none", flip=attempt.may_flip)
    if attempt.may_crop:
        side = round(attempt.image_size * RESIZE_RATIO)
        views = Views(crop="random", resize_size=side, flip=attempt.may_flip)
    return Recipe(
        name="vtab",
        claim="one task of VTAB-1k",
        model=model,
        size=attempt.image_size,
        views=views,
        training=TrainingConfig(
            optimizer="sgd",
            lr=attempt.lr,
            momentum=0.9,
            batch_size=attempt.batch_size,
            total_steps=attempt.steps,
            warmup_steps=attempt.warmup_steps,
            decay="cosine" if attempt.decay == "cosine" else "steps",
            boundaries=() if attempt.decay == "cosine" else (1 / 3, 2 / 3),
            clip_norm=1.0,
            precision=precision,
        ),
    )


def _measurer(processes: Processes, *, workers: int) -> Measure:
    def measure(trained: object, source: Source) -> Interval:
        assert isinstance(trained, Loaded)
        outputs = run_model(
            trained.model.to(processes.device),
            source,
            preprocess=trained.preprocess,
            num_workers=workers,
            device=processes.device,
            what="Testing",
        )
        if outputs.failures:
            raise DataError(
                f"VTAB tests on all images of {source.address}, but {len(outputs.failures)} cannot be read; the "
                f"first: {next(iter(outputs.failures.values()))}"
            )
        return interval_of_share(top_k_correct(outputs.rows.numpy(), source.labels, k=1))

    return measure


def _write(folder: Path, scores: VtabScores) -> tuple[Path, ...]:
    wrote = [folder / "vtab.md"]
    with write_atomically(wrote[0], mode="w") as file:
        file.write(table([scores]))
    try:
        draw_figure(folder / "vtab.png", scores)
        wrote.append(folder / "vtab.png")
    except MissingExtraError as error:
        notice(f"No vtab.png: {error}")
    return tuple(wrote)
