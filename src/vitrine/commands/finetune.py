"""`vitrine finetune`: transfer a trained model to your own images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_model, as_path, as_place, as_texts

if TYPE_CHECKING:
    from vitrine.runs.records import TrainingResult


@documented
def finetune(
    data: Annotated[
        str | Path,
        Doc(
            "Folder with one folder per class, manifest, built-in data set, or generated:shapes; images/ beside "
            "masks/, VOC or ADE20K for masks; COCO's JSON, YOLO's text files or VOC's XML for boxes"
        ),
    ],
    *,
    model: Annotated[
        str | Path | None,
        Doc("Starting weights: run folder, weights file, hub id or URL [default: the bundled model]"),
    ] = None,
    task: Annotated[
        str | None,
        Doc("classification, segmentation, detection or instances [default: as the data is laid out]"),
    ] = None,
    recipe: Annotated[
        str | Path | None,
        Doc(
            "Name of a recipe, or a YAML file with all or some of its settings [default: photos; masks for masks, "
            "boxes for boxes]"
        ),
    ] = None,
    out: options.RunOut = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    lr: options.PeakRate = None,
    size: Annotated[
        int | None, Doc("Image height and width in pixels; position embeddings are resampled")
    ] = None,
    patch: options.Patch = None,
    max_patches: options.MaxPatches = None,
    sweep: Annotated[
        bool, Doc("Try the recipe's learning rates on held-out images, then train on all images")
    ] = False,
    fast: Annotated[
        bool,
        Doc("Train nothing: solve the head on all images in closed form, in seconds, and save it as a run"),
    ] = False,
    keep_classes: Annotated[
        bool,
        Doc(
            "Keep the classes of the model and add those of the data, without training; needs a run of this version"
        ),
    ] = False,
    probe: Annotated[bool, Doc("Train only the head")] = False,
    biases: Annotated[bool, Doc("Train only the biases and the head (BitFit)")] = False,
    freeze: Annotated[
        int | None, Doc("Freeze the patch embedding and the first N blocks; -N: all but the last N")
    ] = None,
    lora: Annotated[
        int | None,
        Doc("Train adapters of this rank (LoRA) and the head; they are saved alone too, in PEFT's format"),
    ] = None,
    seed: Annotated[
        int | None,
        Doc(
            "Seed of new weights, data order and augmentation; the result also depends on the number of threads"
        ),
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
    """Fine-tune a trained model on your images; all weights are trained. Works under torchrun unchanged."""
    from vitrine.jobs import finetune as job

    return job.finetune_model(
        str(data),
        model=None if model is None else as_model(model),
        recipe=None if recipe is None else str(recipe),
        task=task,
        options={
            "epochs": epochs, "steps": steps, "batch_size": batch_size, "lr": lr, "size": size, "seed": seed,
            "patch": patch, "max_patches": max_patches, "precision": precision, "log_every": log_every,
            "checkpoint_every": checkpoint_every, "evaluate_every": evaluate_every, "settings": as_texts(set),
        },
        out=as_place(out),
        sweep=sweep,
        fast=fast,
        keep_classes=keep_classes,
        probe=probe,
        biases=biases,
        freeze=freeze,
        lora=lora,
        data_options=job.DataOptions(
            hold_out=hold_out, group=group, exclude=as_path(exclude), strict=strict,
            allow_empty_class=allow_empty_class,
        ),
        execution=job.Execution(device=device, workers=workers, shard=shard),
        overwrite=overwrite,
        tensorboard=tensorboard,
        wandb=wandb,
    )  # fmt: skip
