"""Try the learning rates of a recipe on the held-out part, then train on all images with the best (Table 4)."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from vitrine.errors import ConfigError
from vitrine.runtime.run_folder import RunFolder

if TYPE_CHECKING:
    from vitrine.data.sources.source import Source
    from vitrine.recipes import Recipe
    from vitrine.runs.training_run import Setting

# Accuracy on the held-out part, then the loss there, below 0: more is better of both.
Judgement: TypeAlias = tuple[float, float]
NOT_FINITE: Judgement = (-math.inf, -math.inf)


def swept(setting: "Setting") -> "Setting":
    """Try each learning rate of the recipe, but for those tried before; return the run of the best, on all images."""
    from vitrine.runs.run_data import everything
    from vitrine.runs.run_records import write_records
    from vitrine.runtime.processes import joined_processes, on_first_process
    from vitrine.runtime.progress import notice
    from vitrine.training.stopping import NotFiniteError

    rates = setting.recipe.sweep
    with joined_processes(setting.device) as processes:
        marked = dataclasses.replace(setting, is_sweeping=True)
        is_resumed = on_first_process(lambda: RunFolder(setting.folder).is_run, processes)
        on_first_process(lambda: write_records(marked, is_resumed=is_resumed), processes)
        notice(
            f"Plan: a sweep of {len(rates)} learning rates ({', '.join(f'{rate:g}' for rate in rates)}), then a run "
            f"on all images: {len(rates) + 1} times what one run takes"
        )
        tried = {rate: judged_with(rate, setting) for rate in rates}
    # Of equally many right answers, and a small part to try on has many ties, the surer ones.
    best = max(tried, key=lambda rate: tried[rate])
    if tried[best] == NOT_FINITE:
        raise NotFiniteError(
            f"the loss was not finite with any of the learning rates {', '.join(f'{rate:g}' for rate in rates)}; try "
            "lower ones with --set sweep=[...], or a longer warm-up"
        )
    notice(f"Training on all of it with learning rate {best:g}")
    chosen, splits = with_rate(best, setting), everything(setting.splits)
    recipe = chosen.recipe.with_steps_for(len(splits["train"]))  # epochs are passes over all of it now
    return dataclasses.replace(chosen, recipe=recipe, splits=splits, trains_on_all=True, is_sweeping=False)


def require_sweep(recipe: "Recipe", splits: "Mapping[str, Source]") -> None:
    """Refuse a sweep without rates to try, or without images to try them on."""
    if not recipe.sweep:
        raise ConfigError(
            f"recipe {recipe.name} has no learning rates to try; give some with --set sweep=[1e-4,3e-4,1e-3]"
        )
    if "val" not in splits:
        raise ConfigError("a sweep needs a held-out part to try learning rates on; leave --hold-out 0 out")


def judged_with(rate: float, setting: "Setting") -> Judgement:
    """Train with one learning rate in a folder of its own, or go on there; say and return how good it came out."""
    from vitrine.runs.training_run import carry_out
    from vitrine.runtime.processes import joined_processes, on_first_process
    from vitrine.runtime.progress import notice
    from vitrine.training.saving import newest_state
    from vitrine.training.stopping import NotFiniteError, StoppedError

    run = RunFolder(setting.folder).attempt(rate)
    folder = run.path

    def is_done() -> bool:
        return run.has_model

    with joined_processes(setting.device) as processes:
        if not on_first_process(is_done, processes):
            attempt = dataclasses.replace(
                with_rate(rate, setting),
                model=copy.deepcopy(setting.model),
                folder=folder,
                is_sweeping=False,
                wants_report=False,
            )
            state = on_first_process(lambda: newest_state(run.last_checkpoint), processes)
            try:
                carry_out(attempt, resume_from=state)
            except StoppedError as stopped:
                raise StoppedError(str(stopped).replace(str(folder), str(setting.folder))) from None
            except NotFiniteError as found:
                notice(f"Learning rate {rate:g}: {found}")
                return NOT_FINITE
        accuracy, surprise = on_first_process(lambda: last_evaluation(run), processes)
    notice(f"Learning rate {rate:g}: {100 * accuracy:.2f} % on the held-out part, loss {-surprise:.4g}")
    return accuracy, surprise


def last_evaluation(run: RunFolder) -> Judgement:
    """Read how good a run was at its end."""
    judged = [record for record in run.read_metrics() if "val_accuracy" in record]
    return judged[-1]["val_accuracy"], -judged[-1]["val_loss"]


def with_rate(rate: float, setting: "Setting") -> "Setting":
    """Return the same run with another learning rate."""
    training = dataclasses.replace(setting.recipe.training, lr=rate)
    return dataclasses.replace(setting, recipe=dataclasses.replace(setting.recipe, training=training))
