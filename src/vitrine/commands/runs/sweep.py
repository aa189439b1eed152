"""Try the learning rates of a recipe on the held-out part, then train on all images with the best (Table 4)."""

import copy
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from vitrine.errors import ConfigError

if TYPE_CHECKING:
    from vitrine.commands.runs.training_run import Setting


def swept(setting: "Setting") -> "Setting":
    """Try each learning rate of the recipe, but for those tried before; return the run of the best, on all images."""
    from vitrine.commands.runs.run_data import everything
    from vitrine.commands.runs.run_records import write_records
    from vitrine.runtime.processes import by_the_first, joined_processes
    from vitrine.runtime.progress import remark

    rates = setting.recipe.sweep
    if not rates or "val" not in setting.splits:
        raise ConfigError(
            "a sweep needs a recipe with learning rates to try and a held-out part to try them on"
        )
    with joined_processes(setting.device) as processes:
        marked = dataclasses.replace(setting, is_sweeping=True)
        is_resumed = by_the_first((setting.folder / "run.json").exists, processes)
        by_the_first(lambda: write_records(marked, is_resumed=is_resumed), processes)
        remark(
            f"Plan: a sweep of {len(rates)} learning rates ({', '.join(f'{rate:g}' for rate in rates)}), then a run "
            f"on all images: {len(rates) + 1} times what one run takes"
        )
        tried = {}
        for rate in rates:
            tried[rate] = accuracy_with(rate, setting)
            remark(f"Learning rate {rate:g}: {100 * tried[rate]:.2f} % on the held-out part")
    best = max(tried, key=lambda rate: tried[rate])
    remark(f"Training on all of it with learning rate {best:g}")
    return dataclasses.replace(
        with_rate(best, setting), splits=everything(setting.splits), trains_on_all=True, is_sweeping=False
    )


def accuracy_with(rate: float, setting: "Setting") -> float:
    """Train with one learning rate in a folder of its own, or go on there; return the best accuracy."""
    from vitrine.commands.runs.training_run import carry_out
    from vitrine.runtime.processes import by_the_first, joined_processes
    from vitrine.training.loop import LAST, StoppedError
    from vitrine.training.state import newest_state, numbers_of

    folder = setting.folder / "sweep" / f"lr-{rate:g}"

    def before() -> "tuple[Path | None, float | None]":
        state = newest_state(folder / "checkpoints" / LAST)
        is_done = state is not None and (folder / "model").exists()
        return state, float(numbers_of(state)["best"]) if state is not None and is_done else None

    with joined_processes(setting.device) as processes:
        state, accuracy = by_the_first(before, processes)
        if accuracy is not None:
            return accuracy
        attempt = dataclasses.replace(
            with_rate(rate, setting),
            model=copy.deepcopy(setting.model),
            folder=folder,
            is_sweeping=False,
            wants_report=False,
        )
        try:
            return carry_out(attempt, resume_from=state).accuracy or 0.0
        except StoppedError as stopped:
            raise StoppedError(str(stopped).replace(str(folder), str(setting.folder))) from None


def with_rate(rate: float, setting: "Setting") -> "Setting":
    """Return the same run with another learning rate."""
    training = dataclasses.replace(setting.recipe.training, lr=rate)
    return dataclasses.replace(setting, recipe=dataclasses.replace(setting.recipe, training=training))
