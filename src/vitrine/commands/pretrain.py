"""`vitrine pretrain`: train a model from fresh weights on images, with labels or without."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import options
from vitrine.commands.arguments import as_model, as_path, as_texts

if TYPE_CHECKING:
    from vitrine.models import Model
    from vitrine.recipes import Recipe
    from vitrine.runs.training_run import TrainingResult

# Where neither recipe nor options name one.
DEFAULT_MODEL = "ViT-Ti/16"


def pretrain(
    data: Annotated[
        str | Path,
        Doc("Folder with one folder per class, manifest, built-in data set, or generated:shapes"),
    ],
    *,
    model: Annotated[str | None, Doc("Variant, such as ViT-S/16 [default: the recipe's]")] = None,
    objective: Annotated[
        Literal["labels", "masked-patches", "autoencoder", "dino", "distillation"] | None,
        Doc("Training objective; only labels needs labels [default: the recipe's]"),
    ] = None,
    target: Annotated[
        Literal["mean-color", "downsized-colors", "pixels"] | None,
        Doc("What masked-patches predicts of a hidden patch [default: mean-color]"),
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
    out: options.Out = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    lr: options.PeakRate = None,
    size: Annotated[int | None, Doc("Image height and width in pixels")] = None,
    seed: Annotated[int | None, Doc("Seed of weights, data order and augmentation")] = None,
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
    """Train a model from scratch, with or without labels. Works under torchrun unchanged."""
    data, out, exclude = str(data), as_path(out), as_path(exclude)
    recipe, teacher = None if recipe is None else str(recipe), None if teacher is None else as_model(teacher)
    set = as_texts(set)
    import torch

    from vitrine.commands.resume import resume
    from vitrine.data.preparing.preprocess import Preprocess
    from vitrine.recipes.options import chosen_recipe
    from vitrine.runs.run_data import open_data, withdrawing
    from vitrine.runs.run_records import restarted_run, start_folder
    from vitrine.runs.teachers import load_teacher, require_classes_of
    from vitrine.runs.training_run import Setting, carry_out, loss_for
    from vitrine.runs.validation import with_evaluations
    from vitrine.runtime.processes import joined_processes
    from vitrine.training.metrics_log import require_sinks

    chosen = chosen_recipe(
        recipe, objective=objective, target=target, teacher=teacher, model=model,
        epochs=epochs, steps=steps, batch_size=batch_size, lr=lr, size=size, seed=seed,
        precision=precision, log_every=log_every, checkpoint_every=checkpoint_every,
        evaluate_every=evaluate_every, settings=set or (),
    )  # fmt: skip
    require_patches(chosen)
    require_sinks(tensorboard=tensorboard, wandb=wandb)
    out = None if out is None else Path(out)
    with joined_processes(device) as processes:
        lost = restarted_run(out, processes=processes)
        if lost is not None:
            return resume(lost, device=device, workers=workers, allow_download=True)
        folder = start_folder(out, verb="pretrain", data=data, overwrite=overwrite, processes=processes)
        with withdrawing(folder, processes):
            opened = open_data(
                data, folder=folder, seed=chosen.training.seed, hold_out=hold_out, exclude=exclude, strict=strict,
                allow_empty_class=allow_empty_class, workers=workers, processes=processes,
                needs_labels=chosen.needs_labels,
            )  # fmt: skip
            train_split = opened.splits["train"]
            chosen = loss_for(train_split, chosen.with_steps_for(len(train_split)))
            chosen = with_evaluations(chosen, opened.splits)
            torch.manual_seed(chosen.training.seed)
            fresh = fresh_model(chosen, num_classes=len(train_split.classes))
            taught_by = load_teacher(chosen, fresh.config)
            if taught_by is not None and chosen.needs_labels:
                require_classes_of(taught_by, tuple(train_split.classes))
        half = (0.5,) * fresh.config.channels
        preprocess = Preprocess(size=fresh.config.image_size, mean=half, std=half)
        return carry_out(
            Setting(
                model=fresh, preprocess=preprocess, splits=opened.splits, set_aside=opened.set_aside,
                issues=opened.issues, contents=opened.contents, recipe=chosen, teacher=taught_by, folder=folder,
                verb="pretrain", data=data, device=device, workers=workers, hold_out=hold_out, exclude=exclude,
                shard=shard, tensorboard=tensorboard, wandb=wandb,
            )
        )  # fmt: skip


def require_patches(recipe: "Recipe") -> None:
    """Refuse a model without patches where patches are to be predicted, before anything is written."""
    from vitrine.data.augmenting.multi_crop import small_view_size
    from vitrine.errors import ConfigError
    from vitrine.models import ViTConfig, configure

    name = recipe.model or DEFAULT_MODEL
    if recipe.objective != "labels" and not isinstance(configure(name), ViTConfig):
        raise ConfigError(f"objective {recipe.objective} needs a ViT, got {name}; a ResNet has no patches")
    if recipe.objective == "dino":
        patch = recipe.model_options.get("patch_size")
        config = configure(name, image_size=recipe.size, **({} if patch is None else {"patch_size": patch}))
        assert isinstance(config, ViTConfig)
        small_view_size(config.grid_size, config.token_stride, wanted=recipe.multi_crop.local_size)


def fresh_model(recipe: "Recipe", *, num_classes: int) -> "Model":
    """Make the recipe's model; without labels it has no head, and none of a head's options."""
    from vitrine.models import create_model

    options = recipe.model_options
    if not recipe.needs_labels:
        options = {
            name: value
            for name, value in options.items()
            if name not in ("representation_width", "head_bias")
        }
    return create_model(
        recipe.model or DEFAULT_MODEL,
        num_classes=num_classes if recipe.needs_labels else None,
        image_size=recipe.size,
        **options,
    )
