"""Train the networks of a cross-validated run, each without one fold of the images.

Shapes: N images, R features.
"""

import copy
import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitrine.data.sources.grouping import merged
from vitrine.data.sources.source import Subset
from vitrine.data.sources.splitting import duplicate_groups, fold_numbers
from vitrine.errors import TryVerb
from vitrine.evaluation.familiarity import fit_distance
from vitrine.evaluation.features import representation
from vitrine.evaluation.outputs import run_model
from vitrine.evaluation.temperature import calibrated_loss
from vitrine.recipes.recipe import Recipe
from vitrine.runs.fold_choice import LAST_SHARE, Fold, FoldResult, is_gain
from vitrine.runs.mixing import SHARES, between, with_weights
from vitrine.runs.records import Execution, RunOutput, StartingModel
from vitrine.runs.run_data import RunData
from vitrine.runs.run_end import without_prefix
from vitrine.runs.run_split import split_groups
from vitrine.runs.run_trust import first_labels
from vitrine.runs.solved_head import features_of, name_of, put_head, softened, solve
from vitrine.runs.train_run import train_run
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.runtime.progress import notice, quiet
from vitrine.training.saving import newest_state, weights_of
from vitrine.training.stopping import StoppedError

FOLDS = 3
# The passes over the data of one fold, relative to a run of its own: all folds together cost as much as that run.
SHARE_OF_PASSES = 0.5


def folds_of(data: RunData, recipe: Recipe, *, workers: int) -> list[Fold]:
    """Divide the training images; near-duplicates and groups stay together."""
    with quiet():  # likely groups were reported when the data was opened
        groups = merged(
            [duplicate_groups(data.train), split_groups(data.train, data.division.group, workers=workers)]
        )
    number = fold_numbers(data.train, folds=FOLDS, seed=recipe.training.seed, groups=groups)
    return [(np.flatnonzero(number != fold), np.flatnonzero(number == fold)) for fold in range(FOLDS)]


def trained_folds(
    start: StartingModel,
    data: RunData,
    folds: Sequence[Fold],
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
    processes: Processes,
) -> list[FoldResult]:
    """Train the folds one after another; only the first one if it finds no gain over the closed form."""
    features, targets = features_of(start, data.train, workers=execution.workers, processes=processes)
    results: list[FoldResult] = []
    for number, (rest, fold) in enumerate(folds):
        heads = on_first_process(
            lambda rest=rest: solve(  # type: ignore[misc]
                features[rest], targets[rest], num_classes=len(data.train.classes), is_balanced=recipe.is_balanced,
                processes=processes, seed=recipe.training.seed,
            ),
            processes,
        )  # fmt: skip
        model = copy.deepcopy(start.model)
        put_head(model, heads[0])
        result = trained_fold(
            dataclasses.replace(start, model=model), data, (rest, fold), recipe, number=number,
            heads={name_of(head): head.logits(features[fold]).float() for head in heads}, execution=execution,
            output=output, processes=processes,
        )  # fmt: skip
        results.append(result)
        losses = {share: calibrated_loss(logits, targets[fold]) for share, logits in result.logits.items()}
        if number == 0 and not is_gain(losses):
            notice(
                f"Stopped after the first of {len(folds)} networks: training does not improve on the closed form "
                f"(log loss {losses[0.0]:.3f} before, {losses[LAST_SHARE]:.3f} after)"
            )
            break
    return results


def trained_fold(
    start: StartingModel,
    data: RunData,
    fold: Fold,
    recipe: Recipe,
    *,
    number: int,
    heads: dict[str, Tensor],
    execution: Execution,
    output: RunOutput,
    processes: Processes,
) -> FoldResult:
    """Train without one fold, or resume there, and score the fold at every share of the trained weights."""
    own = output.folder.fold(number)
    train, val = (Subset(data.train, indices) for indices in fold)
    first = softened({name: value.detach().cpu().clone() for name, value in start.model.state_dict().items()})
    fold_recipe = recipe_of_fold(recipe, num_images=len(train))
    if not on_first_process(lambda: own.has_model, processes):
        state = on_first_process(lambda: newest_state(own.last_checkpoint), processes)
        try:
            train_run(
                start,
                dataclasses.replace(data, splits={"train": train, "val": val}, trains_on_all=False),
                fold_recipe,
                execution=execution,
                output=dataclasses.replace(
                    output,
                    folder=own,
                    plans=number == 0,
                    reports=False,
                    measures_trust=False,
                    num_networks=FOLDS,
                ),
                resume_from=state,
            )
        except StoppedError as stopped:
            resume = TryVerb("resume", (str(output.folder),), "to continue")
            raise StoppedError(stopped.problem, advice=[resume]) from None
    state = newest_state(own.last_checkpoint)
    assert state is not None
    last = without_prefix(weights_of(state), recipe.objective.weights_prefix)
    logits = {0.0: next(iter(heads.values()))}
    for share in (*SHARES, LAST_SHARE):
        with quiet():
            outputs = run_model(
                with_weights(start.model.config, between(first, last, share)).to(processes.device), val,
                preprocess=start.preprocess, num_workers=execution.workers, device=processes.device,
            )  # fmt: skip
        logits[share] = outputs.rows
    steps = fold_recipe.training.total_steps
    return FoldResult(first=first, last=last, logits=logits, heads=heads, steps=steps)


def recipe_of_fold(recipe: Recipe, *, num_images: int) -> Recipe:
    """Return the recipe of a shorter run, which is evaluated at its ends alone."""
    assert recipe.epochs is not None
    training = dataclasses.replace(recipe.training, evaluate_every=None, patience=None)
    shorter = dataclasses.replace(
        recipe, training=training, epochs=SHARE_OF_PASSES * recipe.epochs, solves_head=False, mixes_start=False,
        least_steps=round(SHARE_OF_PASSES * recipe.least_steps),
        fewest_steps=round(SHARE_OF_PASSES * recipe.fewest_steps),
    )  # fmt: skip
    return shorter.with_steps_for(num_images)


def distances_of(
    start: StartingModel,
    data: RunData,
    folds: Sequence[Fold],
    results: Sequence[FoldResult],
    share: float,
    *,
    execution: Execution,
    processes: Processes,
) -> Tensor:
    """Measure how far each image (N,) is from those that its fold's network has learned from."""
    labels = torch.from_numpy(first_labels(data.train).astype(np.int64))
    distances = torch.zeros(len(data.train), dtype=torch.float64)
    for (rest, fold), result in zip(folds, results, strict=True):
        model = with_weights(start.model.config, between(result.first, result.last, share)).to(
            processes.device
        )
        with quiet():
            rows = run_model(
                model, data.train, preprocess=start.preprocess, num_workers=execution.workers,
                device=processes.device, function=lambda images, model=model: representation(model, images),  # type: ignore[misc]
            ).rows  # fmt: skip
        distances[fold] = fit_distance(rows[rest], labels[rest])(rows[fold])
    return distances
