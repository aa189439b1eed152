"""Try the learning rates of a recipe on held-out images, then train on all images with the best (Table 4)."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import TypeAlias

from vitrine.errors import ConfigError, TryOption, TryVerb
from vitrine.recipes.recipe import Recipe
from vitrine.runs.records import Execution, RunOutput, StartingModel, TrainingResult
from vitrine.runs.run_data import RunData, with_held_out
from vitrine.runs.run_start import check_data, write_records
from vitrine.runs.solved_head import with_solved_head
from vitrine.runs.train_run import train_run
from vitrine.runtime.processes import joined_processes, on_first_process
from vitrine.runtime.progress import notice
from vitrine.runtime.run_folder import RunFolder
from vitrine.training.saving import newest_state
from vitrine.training.stopping import NotFiniteError, StoppedError

# Accuracy on the held-out images, then their negative loss: higher is better for both.
Score: TypeAlias = tuple[float, float]
NOT_FINITE: Score = (-math.inf, -math.inf)


def sweep_run(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
    allow_changed_data: bool = False,
) -> TrainingResult:
    """Train with each learning rate of the recipe, in folders below the run's; then on all images with the best.

    Rates that were tried before an interruption are not tried again.
    """
    rates, folder = recipe.sweep, output.folder
    with joined_processes(execution.device) as processes:

        def begin() -> None:
            if folder.is_run:
                check_data(data, folder, allow_changed=allow_changed_data)
            else:
                write_records(start, data, recipe, execution=execution, output=output, is_sweeping=True)

        on_first_process(begin, processes)
        listed = ", ".join(f"{rate:g}" for rate in rates)
        notice(
            f"Plan: a sweep of {len(rates)} learning rates ({listed}), then a run on all images: {len(rates) + 1} "
            "times as long as one run"
        )
        scores = {
            rate: try_rate(rate, start, data, recipe, execution=execution, output=output) for rate in rates
        }
    best = best_rate(scores)
    notice(f"Training on all images with learning rate {best:g}")
    whole = with_held_out(data)
    # Epochs are now passes over all images.
    final = with_rate(best, recipe).with_steps_for(len(whole.train))
    if recipe.solves_head:
        with joined_processes(execution.device) as processes:
            start, _ = with_solved_head(
                start, whole.train, is_balanced=recipe.is_balanced, workers=execution.workers, processes=processes,
                seed=recipe.training.seed,
            )  # fmt: skip
    return train_run(start, whole, final, execution=execution, output=output)


def best_rate(scores: Mapping[float, Score]) -> float:
    """Return the learning rate with the best score; refuse to continue if none could be trained with."""
    # A small held-out set has many ties in accuracy: the loss decides them.
    best = max(scores, key=lambda rate: scores[rate])
    if scores[best] == NOT_FINITE:
        listed = ", ".join(f"{rate:g}" for rate in scores)
        raise NotFiniteError(
            f"the loss was NaN or infinity with each of the learning rates {listed}; try lower ones or a longer "
            "warm-up",
            advice=[TryOption("set", "to choose the rates", "sweep=[1e-5,3e-5]")],
        )
    return best


def require_sweep(recipe: Recipe, data: RunData) -> None:
    """Refuse a sweep without rates to try, or without images to try them on."""
    if not recipe.sweep:
        raise ConfigError(
            f"recipe {recipe.name} has no learning rates to try",
            option="sweep",
            advice=[TryOption("set", "to choose some", "sweep=[1e-4,3e-4,1e-3]")],
        )
    if data.validation is None:
        raise ConfigError("a sweep needs held-out images; hold_out must not be 0", option="sweep")


def try_rate(
    rate: float,
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
) -> Score:
    """Train with one learning rate in a folder of its own, or resume there; report and return its score."""
    attempt = output.folder.attempt(rate)
    with joined_processes(execution.device) as processes:
        if not on_first_process(lambda: attempt.has_model, processes):
            state = on_first_process(lambda: newest_state(attempt.last_checkpoint), processes)
            try:
                train_run(
                    dataclasses.replace(start, model=copy.deepcopy(start.model)),
                    data,
                    with_rate(rate, recipe),
                    execution=execution,
                    output=dataclasses.replace(output, folder=attempt, reports=False, measures_trust=False),
                    resume_from=state,
                )
            except StoppedError as stopped:
                resume = TryVerb("resume", (str(output.folder),), "to continue")
                raise StoppedError(stopped.problem, advice=[resume]) from None
            except NotFiniteError as error:
                notice(f"Learning rate {rate:g}: {error}")
                return NOT_FINITE
        accuracy, negative_loss = on_first_process(lambda: last_score(attempt), processes)
    notice(f"Learning rate {rate:g}: {100 * accuracy:.2f} % on held-out images, loss {-negative_loss:.4g}")
    return accuracy, negative_loss


def last_score(run: RunFolder) -> Score:
    """Read accuracy and negative loss of a run's last evaluation."""
    evaluations = [record for record in run.read_metrics() if "val_accuracy" in record]
    return evaluations[-1]["val_accuracy"], -evaluations[-1]["val_loss"]


def with_rate(rate: float, recipe: Recipe) -> Recipe:
    """Return the recipe with another learning rate."""
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, lr=rate))
