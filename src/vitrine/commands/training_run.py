"""What `pretrain`, `finetune` and `resume` share: from data, model and recipe to a run folder.

The folder: `config.yaml` (re-runs it), `command.txt`, `environment.json`, `classes.json`, `split.csv`, `data.json`,
`metrics.jsonl`, `checkpoints/` (last, best), `model/` (weights with their record).
"""

import dataclasses
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrine.data.preprocess import Preprocess
    from vitrine.data.source import Source
    from vitrine.models import Model
    from vitrine.recipes import Recipe
    from vitrine.training.loop import Outcome, Task
    from vitrine.training.processes import Processes

FILES = ("config.yaml", "metrics.jsonl", "checkpoints", "model")


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A finished run."""

    folder: Path
    model: Path
    """The folder that `vitrine.load` reads."""
    steps: int
    accuracy: float | None
    """On the validation split, of the weights in `model`."""
    interval: tuple[float, float] | None
    """95 %, by Wilson's rule."""
    num_validation: int
    images_per_second: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [*self.notes]
        if self.accuracy is None:
            lines.append(f"Trained for {self.steps:,} steps; there was no validation split to measure it on")
        else:
            assert self.interval is not None
            low, high = self.interval
            lines.append(
                f"Accuracy {100 * self.accuracy:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}) on "
                f"{self.num_validation:,} validation images, after {self.steps:,} steps"
            )
        lines.append(f"Wrote {self.model} (weights, preprocessing, classes) and {self.folder}/metrics.jsonl")
        lines.append(
            f"Next: vitrine.load({str(self.folder)!r}) in Python, or: vitrine convert {self.folder} out --to hf"
        )
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A run that is about to start, or to go on."""

    model: "Model"
    preprocess: "Preprocess"
    splits: "Mapping[str, Source]"
    recipe: "Recipe"
    folder: Path
    verb: str
    data: str
    device: str
    workers: int
    hold_out: float | None = None
    shard: bool = False
    tensorboard: bool = False
    wandb: str | None = None
    allow_changed_data: bool = False


def open_data(
    address: str,
    *,
    folder: Path,
    seed: int,
    hold_out: float | None,
    exclude: Path | None,
    strict: bool,
    allow_empty_class: bool,
    workers: int,
) -> "dict[str, Source]":
    """Open the splits, leave out what cannot be read or was excluded, and say how many."""
    from vitrine.data.exclusions import leave_out, read_exclusions
    from vitrine.data.scan import scan, set_aside
    from vitrine.data.sources import open_splits
    from vitrine.errors import DataError

    try:
        splits = open_splits(
            address,
            seed=seed,
            val_fraction=hold_out,
            split_file=None if hold_out == 0 else folder / "split.csv",
            allow_empty_class=allow_empty_class,
        )
    except DataError:
        if not any(folder.iterdir()):
            folder.rmdir()  # made a moment ago for a run that will not be
        raise
    if not splits["train"].is_labelled:
        raise DataError(f"{address} has no labels; give one folder a class, or a manifest with labels")
    if splits["train"].root is not None:  # generated pictures cannot be broken
        report = scan(splits, num_workers=workers, is_near=False)
        if report.num_bad and strict:
            raise DataError(
                f"{report.num_bad} files of {address} cannot be read; see: vitrine check {address}"
            )
        splits = set_aside(splits, report)
    if exclude is not None:
        splits["train"] = leave_out(splits["train"], read_exclusions(exclude))
    return splits


def carry_out(setting: Setting, *, resume_from: Path | None = None) -> TrainingResult:
    """Train, keep the run folder, save the model; the same alone and under torchrun."""
    from vitrine.runtime.progress import remark
    from vitrine.training.loop import BEST, train
    from vitrine.training.metrics_log import MetricsFile
    from vitrine.training.processes import joined_processes, wait_for_all

    folder = setting.folder
    remark(plan_line(setting))
    with joined_processes(setting.device) as processes:
        task = make_task(setting, processes)
        done = steps_done(resume_from)
        sinks: list[Any] = []
        if processes.is_first:
            write_records(setting, is_resumed=resume_from is not None)
            sinks = [MetricsFile(folder / "metrics.jsonl", done_steps=done), *optional_sinks(setting)]
        wait_for_all(processes)
        try:
            outcome = train(
                setting.model,
                task,
                config=setting.recipe.training,
                folder=folder / "checkpoints",
                sinks=sinks,
                processes=processes,
                shard=setting.shard,
                resume_from=resume_from,
            )
        finally:
            for sink in sinks:
                sink.close()
        best = folder / "checkpoints" / BEST
        accuracy = save_model(setting, best, processes=processes, outcome=outcome)
        wait_for_all(processes)
    num_validation = len(setting.splits["val"]) if "val" in setting.splits else 0
    return TrainingResult(
        folder=folder,
        model=folder / "model",
        steps=outcome.steps,
        accuracy=accuracy,
        interval=None if accuracy is None else wilson_interval(accuracy, num_validation),
        num_validation=num_validation,
        images_per_second=outcome.images_per_second,
    )


def make_task(setting: Setting, processes: "Processes") -> "Task":
    """Wire loader, augmentation, loss and evaluation into what the loop takes."""
    import torch
    from torch import nn

    from vitrine.data.augment import augment
    from vitrine.data.loader import Batch, Loader
    from vitrine.data.order import training_rows
    from vitrine.data.resident import ResidentLoader, can_reside
    from vitrine.data.view import TrainView
    from vitrine.objectives.classification import classification_loss, num_correct
    from vitrine.training.loop import Task

    recipe, preprocess, train_split = setting.recipe, setting.preprocess, setting.splits["train"]
    config, views = recipe.training, recipe.views
    num_classes = len(train_split.classes)
    resize = None if views.resize_size is None else (views.resize_size, views.resize_size)
    view = TrainView(
        size=preprocess.size,
        channels=preprocess.channels,
        crop=views.crop,
        area=views.area,
        flip=views.flip,
        resize_size=resize,
    )
    sharing: dict[str, Any] = {
        "batch_size": config.batch_size,
        "seed": config.seed,
        "rank": processes.rank,
        "world_size": processes.world_size,
        "device": processes.device,
    }
    loader: Loader | ResidentLoader
    if processes.device.type == "cuda" and can_reside(train_split, view):
        loader = ResidentLoader(train_split, view, **sharing)
    else:
        loader = Loader(train_split, view, num_workers=setting.workers, **sharing)

    def prepare(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        pixels, targets = augment(
            batch.images,
            batch.labels,
            batch.rows,
            how=recipe.augment,
            num_classes=num_classes,
            seed=config.seed,
        )
        return preprocess.normalise(pixels), targets

    def loss_of(
        module: nn.Module, parts: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        images, targets = parts
        logits = module(images)
        return classification_loss(logits, targets, kind=recipe.loss), {
            "accuracy": num_correct(logits, targets)
        }

    def names_of(step: int) -> list[str]:
        rows = training_rows(step, length=len(train_split), batch_size=config.batch_size, seed=config.seed)
        return [train_split.name(int(index)) for index in rows.indices]

    return Task(
        batches=lambda start, stop: loader.training_batches(start_step=start, stop_step=stop),
        prepare=prepare,
        loss_of=loss_of,
        evaluate=make_evaluation(setting, processes) if "val" in setting.splits else None,
        names_of=names_of,
    )


def make_evaluation(setting: Setting, processes: "Processes") -> Any:
    """Return the function that judges a model on the validation split: loss and accuracy, every image once."""
    import torch
    from torch import nn

    from vitrine.data.loader import Loader
    from vitrine.objectives.classification import classification_loss, num_correct
    from vitrine.training.processes import mean_over

    source, preprocess = setting.splits["val"], setting.preprocess
    world_size = processes.world_size
    batch = min(setting.recipe.training.batch_size, 64 * world_size) // world_size * world_size or world_size

    def evaluate(model: nn.Module) -> dict[str, float]:
        sums = torch.zeros(3, device=processes.device, dtype=torch.float64)
        with Loader(
            source, preprocess, batch_size=batch, rank=processes.rank, world_size=world_size,
            num_workers=setting.workers, device=processes.device,
        ) as loader:  # fmt: skip
            for found in loader.evaluation_batches():
                logits = model(preprocess.normalise(found.images))
                losses = classification_loss(logits, found.labels, kind=setting.recipe.loss)
                sums += torch.stack(
                    [
                        losses.sum().double(),
                        num_correct(logits, found.labels).double(),
                        sums.new_tensor(len(found)),
                    ]
                )
        loss, correct, count = mean_over(sums, processes).tolist()
        return {"loss": loss / count, "accuracy": correct / count}

    return evaluate


def save_model(setting: Setting, best: Path, *, processes: "Processes", outcome: "Outcome") -> float | None:
    """Save the best weights (the last where nothing was evaluated) with their record; return their accuracy."""
    from vitrine.checkpoints import save
    from vitrine.training.state import weights_of

    weights = weights_of(best if best.exists() else best.with_name("last.safetensors"))
    if processes.is_first:
        setting.model.cpu().load_state_dict(weights)
        save(
            setting.model.eval(),
            setting.folder / "model",
            preprocess=setting.preprocess,
            classes=list(setting.splits["train"].classes),
            recipe=dataclasses.asdict(setting.recipe),
            overwrite=True,
        )
    return outcome.best


def data_folder(address: str) -> list[Path]:
    """Return the folder or file that a data set lies in, where it is one on this machine: never written to."""
    path = Path(address)
    return [path] if path.exists() else []


def plan_line(setting: Setting) -> str:
    """Say before the first step what will be done."""
    counts = ", ".join(f"{len(source):,} {name}" for name, source in setting.splits.items())
    t, config = setting.recipe.training, setting.model.config
    side = "x".join(map(str, config.image_size))
    params = sum(p.numel() for p in setting.model.parameters())
    return (
        f"Plan: {setting.recipe.model or 'the model'}, {params:,} parameters, {config.num_classes} classes, "
        f"{side} px; {counts} images; {t.total_steps:,} steps of {t.batch_size}, {t.optimizer} at {t.lr:g}, warm-up "
        f"{t.warmup_steps}, {t.decay} decay; {memory_line(setting)}; to {setting.folder}"
    )


def memory_line(setting: Setting) -> str:
    """Predict the memory of a step on one device."""
    from vitrine.models.cost import cost_of
    from vitrine.models.memory import Demand

    training = setting.recipe.training
    demand = Demand(
        cost=cost_of(setting.model.config),
        states=1 if training.optimizer == "sgd" else 2,
        bytes_kept=2 if training.precision == "bf16" else 4,
    )
    batch = training.micro_batch or training.batch_size
    return f"about {demand.memory(micro_batch=batch).total / 2**30:.1f} GiB for {batch} images at a time"


def steps_done(state: Path | None) -> int:
    """Return the step that a saved state stands at."""
    from vitrine.training.state import numbers_of

    return int(numbers_of(state)["step"]) if state is not None else 0


def optional_sinks(setting: Setting) -> list[Any]:
    """Open TensorBoard and W&B where they are asked for."""
    from vitrine.training.metrics_log import TensorBoard, WeightsAndBiases

    sinks: list[Any] = []
    if setting.tensorboard:
        sinks.append(TensorBoard(setting.folder / "tensorboard"))
    if setting.wandb:
        config = dataclasses.asdict(setting.recipe)
        sinks.append(WeightsAndBiases(setting.wandb, config=config, folder=setting.folder))
    return sinks


def write_records(setting: Setting, *, is_resumed: bool) -> None:
    """Write what is needed to repeat the run; a resumed run checks that its data is unchanged."""
    from vitrine.checkpoints.record import config_to_json
    from vitrine.checkpoints.writing import write_json, write_text
    from vitrine.errors import DataError
    from vitrine.recipes.recipe import to_yaml

    folder = setting.folder
    fingerprints = {name: source.fingerprint() for name, source in setting.splits.items()}
    record = folder / "data.json"
    if is_resumed and record.exists():
        before = json.loads(record.read_text())["fingerprints"]
        changed = [name for name in fingerprints if before.get(name) != fingerprints[name]]
        if changed and not setting.allow_changed_data:
            raise DataError(
                f"the {changed[0]} split of {setting.data} is not what this run began with; bring the files back, "
                "or go on with what is there now with --allow-changed-data"
            )
        return
    write_text(folder / "config.yaml", to_yaml(setting.recipe))
    write_text(folder / "command.txt", " ".join(sys.argv) + "\n")
    write_json(folder / "environment.json", environment())
    write_json(folder / "classes.json", {"classes": list(setting.splits["train"].classes)})
    write_json(
        folder / "data.json",
        {
            "address": setting.data,
            "images": {name: len(source) for name, source in setting.splits.items()},
            "fingerprints": fingerprints,
        },
    )
    write_json(
        folder / "run.json",
        {"verb": setting.verb, "data": setting.data, "device": setting.device, "workers": setting.workers,
         "shard": setting.shard, "hold_out": setting.hold_out, "preprocess": setting.preprocess.to_json(),
         "model": config_to_json(setting.model.config)},
    )  # fmt: skip


def environment() -> dict[str, Any]:
    """Return the versions and the machine that a run depends on."""
    import torch

    from vitrine.version import __version__

    return {
        "vitrine": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` trials (Wilson, 1927), sane near 0 and 1 too."""
    z = 1.959964
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    return max(middle - half, 0.0), min(middle + half, 1.0)
