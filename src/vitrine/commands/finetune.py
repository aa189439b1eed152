"""`vitrine finetune`: transfer a trained model to your own images."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import options
from vitrine.commands.arguments import as_model, as_path, as_texts
from vitrine.commands.model_or_box import BOX
from vitrine.runtime.find_run import resolve_latest

if TYPE_CHECKING:
    from vitrine.runs.training_run import TrainingResult


def finetune(
    data: Annotated[
        str | Path,
        Doc("Folder with one folder per class, manifest, built-in data set, or generated:shapes"),
    ],
    *,
    model: Annotated[
        str | Path | None,
        Doc("Starting weights: run folder, weights file, hub id or URL [default: the bundled model]"),
    ] = None,
    recipe: Annotated[
        str | Path, Doc("Name of a recipe, or a YAML file with all or some of its settings")
    ] = "photos",
    out: options.Out = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    lr: options.PeakRate = None,
    size: Annotated[
        int | None, Doc("Image height and width in pixels; position embeddings are resampled")
    ] = None,
    sweep: Annotated[
        bool, Doc("Try the recipe's learning rates on held-out images, then train on all images")
    ] = False,
    probe: Annotated[bool, Doc("Train only the head")] = False,
    freeze: Annotated[int | None, Doc("Freeze the patch embedding and the first N blocks")] = None,
    seed: Annotated[int | None, Doc("Seed of data order and augmentation")] = None,
    set: options.Settings = None,
    device: options.Device = "auto",
    precision: options.Precision = None,
    workers: options.Workers = 2,
    log_every: options.LogEvery = None,
    checkpoint_every: options.CheckpointEvery = None,
    evaluate_every: options.EvaluateEvery = None,
    hold_out: options.HoldOut = None,
    exclude: options.Exclude = None,
    shard: options.Shard = False,
    strict: options.Strict = False,
    allow_empty_class: options.AllowEmptyClass = False,
    overwrite: options.Overwrite = False,
    tensorboard: options.TensorBoard = False,
    wandb: options.WeightsAndBiases = None,
) -> "TrainingResult":
    """Fine-tune a trained model on your images; all weights are trained. Works under torchrun unchanged."""
    data, recipe, out, exclude = str(data), str(recipe), as_path(out), as_path(exclude)
    model = None if model is None else as_model(model)
    set = as_texts(set)
    from vitrine.commands.resume import resume
    from vitrine.errors import ConfigError
    from vitrine.recipes.options import chosen_recipe, is_file
    from vitrine.runs.run_data import open_data, withdrawing
    from vitrine.runs.run_records import restarted_run, start_folder
    from vitrine.runs.starting_weights import load_to_tune, require_free_options
    from vitrine.runs.sweep import require_sweep, swept
    from vitrine.runs.training_run import Setting, carry_out, loss_for
    from vitrine.runs.validation import with_evaluations
    from vitrine.runtime.processes import joined_processes
    from vitrine.training.metrics_log import require_sinks
    from vitrine.training.optimizer import freeze as freeze_weights

    chosen = chosen_recipe(
        recipe, epochs=epochs, steps=steps, batch_size=batch_size, lr=lr, size=size, seed=seed,
        precision=precision, log_every=log_every, checkpoint_every=checkpoint_every,
        evaluate_every=evaluate_every, settings=set or (),
    )  # fmt: skip
    if chosen.objective != "labels":
        raise ConfigError(
            f"recipe {chosen.name} learns without labels; it goes with vitrine pretrain; here use photos or another"
        )
    if model is None:
        model = chosen.model if chosen.model is not None and is_file(recipe) else BOX
    model = resolve_latest(model)
    if probe:
        chosen = dataclasses.replace(chosen, training=dataclasses.replace(chosen.training, trains="head"))
    if freeze is not None:
        if probe:
            raise ConfigError(
                "--probe trains the head alone, so --freeze has nothing to add; leave one of them out"
            )
        if freeze < 0:
            raise ConfigError(f"--freeze is a number of blocks, 0 or more, got {freeze}")
        chosen = dataclasses.replace(
            chosen, training=dataclasses.replace(chosen.training, frozen_blocks=freeze)
        )
    require_free_options(set or ())
    require_sinks(tensorboard=tensorboard, wandb=wandb)
    out = None if out is None else Path(out)
    with joined_processes(device) as processes:
        lost = restarted_run(out, processes=processes)
        if lost is not None:
            return resume(lost, device=device, workers=workers, allow_download=True)
        folder = start_folder(out, verb="finetune", data=data, overwrite=overwrite, processes=processes)
        with withdrawing(folder, processes):
            opened = open_data(
                data, folder=folder, seed=chosen.training.seed, hold_out=hold_out, exclude=exclude, strict=strict,
                allow_empty_class=allow_empty_class, workers=workers, processes=processes,
            )  # fmt: skip
            train_split = opened.splits["train"]
            chosen = loss_for(train_split, chosen.with_steps_for(len(train_split)))
            if sweep:
                require_sweep(chosen, opened.splits)
            else:  # rates are compared by where they end, since the run on all images goes to its end
                chosen = with_evaluations(chosen, opened.splits)
            loaded = load_to_tune(model, chosen, num_classes=len(train_split.classes))
            freeze_weights(loaded.model, chosen.training)
        setting = Setting(
            model=loaded.model, preprocess=loaded.preprocess, splits=opened.splits, set_aside=opened.set_aside,
            issues=opened.issues, contents=opened.contents, recipe=dataclasses.replace(chosen, model=model),
            folder=folder, verb="finetune", data=data, device=device, workers=workers, hold_out=hold_out,
            exclude=exclude, shard=shard, tensorboard=tensorboard, wandb=wandb,
        )  # fmt: skip
        return carry_out(swept(setting) if sweep else setting)
