"""`vitrine pretrain`: train a model from fresh weights on images, with labels or without."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_model, as_path, as_place, as_texts

if TYPE_CHECKING:
    from vitrine.runs.records import TrainingResult


@documented
def pretrain(
    data: Annotated[
        str | Path,
        Doc("Folder with one folder per class, manifest, built-in data set, or generated:shapes"),
    ],
    *,
    model: Annotated[str | None, Doc("Variant, such as ViT-S/16 [default: the recipe's]")] = None,
    objective: Annotated[
        str | None,
        Doc(
            "labels, or without labels masked-patches, autoencoder, dino, ibot, moco, simclr or distillation "
            "[default: the recipe's]"
        ),
    ] = None,
    target: Annotated[
        str | None,
        Doc(
            "For masked-patches: mean-color, downsized-colors or pixels of a hidden patch [default: mean-color]"
        ),
    ] = None,
    teacher: Annotated[
        str | Path | None, Doc("Teacher for distillation: run folder, weights file or hub id")
    ] = None,
    recipe: Annotated[
        str | Path | None,
        Doc(
            "Name of a recipe, or a YAML file with all or some of its settings "
            "[default: from-scratch, or the objective's]"
        ),
    ] = None,
    out: options.RunOut = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    lr: options.PeakRate = None,
    size: Annotated[int | None, Doc("Image height and width in pixels")] = None,
    max_patches: options.MaxPatches = None,
    seed: Annotated[
        int | None,
        Doc("Seed of weights, data order and augmentation; the result also depends on the number of threads"),
    ] = None,
    set: options.Settings = None,
    device: options.Device = "auto",
    precision: options.Precision = None,
    workers: options.Workers = 2,
    log_every: options.LogEvery = None,
    checkpoint_every: options.CheckpointEvery = None,
    evaluate_every: options.EvaluateEvery = None,
    hold_out: options.HoldOut = None,
    group: options.Group = None,
    exclude: options.Exclude = None,
    shard: options.Shard = False,
    strict: options.Strict = False,
    allow_empty_class: options.AllowEmptyClass = False,
    overwrite: options.Overwrite = False,
    tensorboard: options.TensorBoard = False,
    wandb: options.WeightsAndBiases = None,
) -> "TrainingResult":
    """Train a model from scratch, with or without labels. Works under torchrun unchanged."""
    from vitrine.jobs import pretrain as job

    return job.pretrain_model(
        str(data),
        recipe=None if recipe is None else str(recipe),
        options={
            "objective": objective, "target": target, "teacher": None if teacher is None else as_model(teacher),
            "model": model, "epochs": epochs, "steps": steps, "batch_size": batch_size, "lr": lr, "size": size,
            "seed": seed, "max_patches": max_patches, "precision": precision, "log_every": log_every,
            "checkpoint_every": checkpoint_every,
            "evaluate_every": evaluate_every, "settings": as_texts(set),
        },
        out=as_place(out),
        data_options=job.DataOptions(
            hold_out=hold_out, group=group, exclude=as_path(exclude), strict=strict,
            allow_empty_class=allow_empty_class,
        ),
        execution=job.Execution(device=device, workers=workers, shard=shard),
        overwrite=overwrite,
        tensorboard=tensorboard,
        wandb=wandb,
    )  # fmt: skip
