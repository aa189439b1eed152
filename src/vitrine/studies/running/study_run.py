"""One run of a study: train as `pretrain` and `finetune` do, then measure; or measure speed.

A run that was stopped goes on from its last checkpoint. Images of small sets stay on the device.
"""

import dataclasses
import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrine.runtime.run_folder import RunFolder
from vitrine.studies.running.study_data import StudyData, part_of, splits_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitrine.data.preparing.preprocess import Preprocess
    from vitrine.data.sources.source import Source
    from vitrine.models import Model
    from vitrine.runs.training_run import Setting
    from vitrine.studies.record import Run
    from vitrine.training.task import Task

EVALUATION_BATCH = 1000
SHOTS, DRAWS = 5, 5
# Images a class that the few labels are drawn from.
SUPPORT = 50


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where runs find their data and leave their weights."""

    folders: Mapping[str, Path]
    """The folder of every run by study and name, another one for other data or another recipe."""
    data: Mapping[str, StudyData] = field(default_factory=dict)
    device: str = "auto"
    jobs: int = 1
    """Processes that share the cores."""
    workers: int = 2
    """Readers of sets that are not held in memory."""

    def folder(self, study: str, run: str) -> Path:
        """Return the folder of a run."""
        return self.folders[f"{study}/{run}"]


def carry_out_run(run: "Run", place: Place) -> dict[str, Any]:
    """Carry out one run and return the fields of its result that only the run knows."""
    import torch

    from vitrine.models.cost import cost_of
    from vitrine.runtime.devices import choose_device
    from vitrine.runtime.progress import quiet
    from vitrine.studies.estimate import exaflops_of

    if place.jobs > 1:
        torch.set_num_threads(max(available_threads() // place.jobs, 1))
    device = choose_device(place.device)
    began = time.monotonic()
    cost = cost_of(run.model)
    with quiet():
        if run.work == "speed":
            found: dict[str, Any] = {"measures": measured_speed(run, device), "steps": 0, "num_images": 0}
        else:
            found = trained_and_measured(run, place, device)
    if device.type == "cuda":  # what is kept for the next run here is missing in the other processes
        torch.cuda.empty_cache()
    return {
        **found,
        "params": cost.params,
        "macs": cost.macs,
        "exaflops": exaflops_of(run, found["steps"]),
        "seconds": round(time.monotonic() - began, 3),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


@functools.cache
def available_threads() -> int:
    """Return how many threads torch would take in a process of its own; OMP_NUM_THREADS decides where it is set."""
    import torch

    return torch.get_num_threads()


def trained_and_measured(run: "Run", place: Place, device: "torch.device") -> dict[str, Any]:
    """Train from the run's weights or from its last checkpoint, then judge the best weights on the test split."""
    from vitrine.checkpoints import save
    from vitrine.data.preparing.preprocess import Preprocess
    from vitrine.models import build
    from vitrine.runs.run_records import steps_done
    from vitrine.runs.training_task import trained_module, weights_of_model
    from vitrine.runtime.processes import Processes
    from vitrine.training.loop import train
    from vitrine.training.saving import newest_state, weights_of

    data, size = place.data[run.data], run.model.image_size
    splits = splits_of(data, size[0])
    preprocess = Preprocess(size=size)
    train_part = part_of(splits["train"], run.num_images, seed=run.seed)
    setting = setting_of(run, place, preprocess=preprocess, splits={**splits, "train": train_part})
    kept = RunFolder(setting.folder)
    unfinished = newest_state(kept.last_checkpoint)
    resumed_at = steps_done(unfinished)
    module = trained_module(setting)
    processes = Processes(device=device)
    train(
        module, task_of(setting, run, processes), config=run.recipe.training, folder=kept.checkpoints,
        processes=processes, resume_from=unfinished,
    )  # fmt: skip
    state = newest_state(kept.best_checkpoint) or newest_state(kept.last_checkpoint)
    assert state is not None
    model = build(run.model)
    model.load_state_dict(weights_of_model(weights_of(state), run.recipe.objective))
    if run.role == "preparation":
        save(model, kept.model, preprocess=preprocess, overwrite=True)
    model = model.to(device).eval()
    measures = {} if run.role == "preparation" else measured(model, run, place, preprocess=preprocess)
    return {
        "measures": measures,
        "steps": steps_done(newest_state(kept.last_checkpoint)),
        "num_images": len(train_part),
        "resumed_at": resumed_at,
    }


def setting_of(
    run: "Run", place: Place, *, preprocess: "Preprocess", splits: "Mapping[str, Source]"
) -> "Setting":
    """Describe the run as the training verbs do."""
    from vitrine.runs.training_run import Setting

    return Setting(
        model=first_weights(run, place),
        preprocess=preprocess,
        splits=splits,
        recipe=run.recipe,
        folder=place.folder(run.study, run.name),
        verb="study",
        data=place.data[run.data].address,
        device=place.device,
        workers=place.workers,
    )


def first_weights(run: "Run", place: Place) -> "Model":
    """Build the model: fresh, or with the weights of the run before it, a new head and fitting positions."""
    import torch

    from vitrine.checkpoints import load
    from vitrine.checkpoints.adapting import with_num_classes
    from vitrine.checkpoints.weights import ModelWeights, fill_model
    from vitrine.models import build

    torch.manual_seed(run.seed)
    fresh = build(run.model)
    if run.after is None:
        return fresh
    before = load(RunFolder(place.folder(run.study, run.after)).model, image_size=run.model.image_size)
    # The head begins anew even where the classes are the same (section 3.2).
    weights, _ = with_num_classes(ModelWeights(before.model), run.model.num_classes)
    model = build(run.model)
    tensors = fill_model(weights).state_dict()
    if not run.keeps_positions:
        tensors |= {
            name: value for name, value in fresh.state_dict().items() if name.startswith("positions.")
        }
    model.load_state_dict(tensors)
    return model


def task_of(setting: "Setting", run: "Run", processes: Any) -> "Task":
    """Make the task of the training verbs, judged on images that are already on the device, and only if asked."""
    from vitrine.runs.training_task import make_task

    task = make_task(setting, processes)
    evaluate = None
    if run.recipe.training.evaluate_every and run.recipe.objective == "labels" and "val" in setting.splits:
        val, preprocess = setting.splits["val"], setting.preprocess

        def evaluate(model: "nn.Module") -> dict[str, float]:
            return {"accuracy": accuracy_of(model, val, preprocess=preprocess, device=processes.device)}

    return dataclasses.replace(task, evaluate=evaluate, depict=None)


def measured(model: "Model", run: "Run", place: Place, *, preprocess: "Preprocess") -> dict[str, float]:
    """Judge a model: test accuracy, that on held-out images, and five labels a class where the run asks for it."""
    import torch

    device = next(model.parameters()).device
    data = place.data[run.data]
    splits = splits_of(data, preprocess.size[0])
    found = {"accuracy": accuracy_of(model, splits[data.test_split], preprocess=preprocess, device=device)}
    if "val" in splits:
        found["held_out"] = (
            found["accuracy"]
            if data.test_split == "val"
            else accuracy_of(model, splits["val"], preprocess=preprocess, device=device)
        )
    target = place.data.get("target0", data)
    if run.probes:
        with torch.no_grad():
            score = few_shot(model, target, preprocess=preprocess, device=device)
        if score is not None:
            found["fewshot"] = score
    return found


def outputs_of(
    apply: Any, source: "Source", *, preprocess: "Preprocess", device: "torch.device"
) -> "torch.Tensor":
    """Apply a function to every image of a set, in bf16 on CUDA: rows (N, K) on the CPU."""
    import numpy as np
    import torch

    from vitrine.data.loading.loader import Loader
    from vitrine.data.loading.resident import pixels_of

    array, parts = pixels_of(source), []
    casting = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    with torch.no_grad(), casting:
        if array is None or array.shape[1:3] != preprocess.size:
            with Loader(source, preprocess, batch_size=64, num_workers=2, device=device) as loader:
                parts = [apply(preprocess.normalise(batch.images)) for batch in loader.evaluation_batches()]
            return torch.cat(parts).float().cpu()
        rows = np.asarray(getattr(source, "indices", np.arange(len(source))))
        for start in range(0, len(rows), EVALUATION_BATCH):
            chunk = torch.from_numpy(np.ascontiguousarray(array[rows[start : start + EVALUATION_BATCH]]))
            parts.append(apply(preprocess.normalise(chunk.to(device).permute(0, 3, 1, 2))))
    return torch.cat(parts).float().cpu()


def accuracy_of(
    model: "nn.Module", source: "Source", *, preprocess: "Preprocess", device: "torch.device"
) -> float:
    """Return the share of a set that a model names rightly."""
    import numpy as np

    logits = outputs_of(model, source, preprocess=preprocess, device=device)
    return float(np.mean(logits.argmax(dim=1).numpy() == source.labels))


def few_shot(
    model: "Model", target: StudyData, *, preprocess: "Preprocess", device: "torch.device"
) -> float | None:
    """Return linear 5-shot accuracy (closed form), the mean of five draws; None where a class has too few images."""
    import numpy as np

    from vitrine.data.sources.source import Subset
    from vitrine.evaluation.features import representation
    from vitrine.evaluation.fewshot import draw_support, fewshot_accuracy

    splits = splits_of(target, preprocess.size[0])
    train, test = splits["train"], splits[target.test_split]
    num_classes = len(target.classes)
    if np.bincount(train.labels, minlength=num_classes).min() < SHOTS:
        return None
    pool = Subset(train, draw_support(train.labels, shots=SUPPORT, seed=0, num_classes=num_classes))

    def features(source: "Source") -> Any:
        return outputs_of(
            lambda images: representation(model, images), source, preprocess=preprocess, device=device
        )

    result = fewshot_accuracy(
        features(pool), pool.labels, features(test), test.labels, shots=[SHOTS], seeds=DRAWS,
        class_names=target.classes,
    )  # fmt: skip
    return result.score(SHOTS).mean


def measured_speed(run: "Run", device: "torch.device") -> dict[str, float]:
    """Measure images a second and, on CUDA, the largest batch (appendix D.5)."""
    import torch

    from vitrine.evaluation.speed import largest_batch, measure_speeds
    from vitrine.models import build

    torch.manual_seed(run.seed)
    model = build(run.model).to(device)
    precision: Any = "bf16" if device.type == "cuda" else "fp32"
    is_cuda = device.type == "cuda"
    (speed,) = measure_speeds(
        {"model": model}, image_size=run.model.image_size, device=device, precision=precision,
        batch_size=run.recipe.training.batch_size if is_cuda else 2, turns=3 if is_cuda else 1,
        turn_seconds=0.5 if is_cuda else 0.05,
    )  # fmt: skip
    found = {"images_per_second": speed.images_per_second, "latency_ms": speed.latency_ms}
    if is_cuda:
        found["largest_batch"] = float(
            largest_batch(model, image_size=run.model.image_size, device=device, precision=precision)
        )
    return found
