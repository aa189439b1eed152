"""`vitrine resume`: go on with a run that was stopped, to the bit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

if TYPE_CHECKING:
    from vitrine.commands.training_run import TrainingResult


def resume(
    run: Annotated[Path, Doc("A run folder, or runs/latest for the newest one.")],
    *,
    device: Annotated[str | None, Doc("auto, cpu or cuda; by default what the run began on.")] = None,
    workers: Annotated[int | None, Doc("Threads that read images.")] = None,
    allow_changed_data: Annotated[bool, Doc("Go on although files were added, removed or changed.")] = False,
) -> "TrainingResult":
    """Go on with a run where it was stopped: data order, random numbers, averages and best result are kept."""
    import json

    import torch

    from vitrine.checkpoints.record import config_from_json
    from vitrine.commands.training_run import Setting, carry_out, open_data, steps_done
    from vitrine.data.preprocess import Preprocess
    from vitrine.errors import ConfigError
    from vitrine.models import build
    from vitrine.recipes.recipe import from_yaml
    from vitrine.runtime.progress import remark
    from vitrine.runtime.run_folders import find_run

    folder = find_run(run)
    state = folder / "checkpoints" / "last.safetensors"
    if not state.exists():
        raise ConfigError(
            f"{folder} has no checkpoint yet, so there is nothing to go on from; start the run again"
        )
    recipe = from_yaml((folder / "config.yaml").read_text())
    began = json.loads((folder / "run.json").read_text())
    done = steps_done(state)
    if done >= recipe.training.total_steps and (folder / "model").exists():
        raise ConfigError(f"{folder} is finished ({done:,} steps); its model is in {folder / 'model'}")
    splits = open_data(
        began["data"], folder=folder, seed=recipe.training.seed, hold_out=began["hold_out"], exclude=None,
        strict=False, allow_empty_class=True,
        workers=began["workers"] if workers is None else workers,
    )  # fmt: skip
    torch.manual_seed(recipe.training.seed)
    remark(f"Going on with {folder} after step {done:,} of {recipe.training.total_steps:,}")
    return carry_out(
        Setting(
            model=build(config_from_json(began["model"])),
            preprocess=Preprocess.from_json(began["preprocess"]),
            splits=splits,
            recipe=recipe,
            folder=folder,
            verb=began["verb"],
            data=began["data"],
            device=device or began["device"],
            workers=began["workers"] if workers is None else workers,
            hold_out=began["hold_out"],
            shard=began["shard"],
            allow_changed_data=allow_changed_data,
        ),
        resume_from=state,
    )
