"""How long a run will take, said before its first step: a few images are read, learned from and forgotten.

Nothing that the run depends on is changed by that: weights keep their values, gradients are thrown away, random
numbers are put back. Models of which a single image takes a second are reckoned by their operations instead.
"""

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitrine.data.loading.loader import Batch
    from vitrine.runs.training_run import Setting
    from vitrine.runtime.processes import Processes
    from vitrine.training.task import Task

# What reading some images, and learning from some, may take; and how many images are tried at most.
READING_SECONDS, LEARNING_SECONDS = 0.25, 0.8
MOST_READ, MOST_LEARNED, MOST_PASSES = 16, 16, 5
# Operations a second that a device of the kind surely reaches: by these a trial is seen to be short enough.
SURE_RATE = {"cpu": 3e10, "cuda": 1e14}
LONGEST_IMAGE_SECONDS, LONGEST_PASS_SECONDS = 1.0, 1.5
# A training step reaches half of the matmul rate of an H200 (docs/experiments.md), two thirds of a CPU's (ViT-B/16).
SHARE_OF_RATE = {"cpu": 0.65, "cuda": 0.5}
# Compiled, a step takes 0.7 of the trial's time (there), and compiling itself about a minute.
COMPILED_SHARE, COMPILING_SECONDS = 0.7, 60.0
# The trial launches its kernels one by one, which for a small model takes longer than they run. Recorded, that is
# gone: even a ViT of width 256 under heavy augmentation then reaches 0.22 of the rate (there, CIFAR-10).
RECORDED_SHARE_OF_RATE = 0.2
# Clipping and AdamW on two cores: 22 ms for 5.5 million weights. Accelerators do it beside the rest.
UPDATE_SECONDS_A_WEIGHT = 4e-9
# A pass forward is a third of one forward and backward.
FORWARD_SHARE = 1 / 3
FORWARD_FLOPS_PER_MAC = 2


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds an image."""

    learning: float
    """Of the device."""
    reading: float
    """Of one thread."""
    workers: int
    threads: int | None
    """How many cores the device and the readers share; None where the device has its own."""

    def seconds(self, images: float, *, share: float = 1.0) -> float:
        """Return what so many images take, with `share` of the device's work on each."""
        learning = share * self.learning
        if not self.workers:
            return images * (learning + self.reading)
        alone = self.reading / self.workers
        if self.threads is None:
            return images * max(learning, alone)
        return images * max(learning + self.reading / self.threads, alone)


def expected_seconds(
    setting: "Setting", processes: "Processes", module: "nn.Module", task: "Task | None", *, done: int
) -> float:
    """Return the seconds that the steps after `done` and the evaluations among them will take.

    Every process must ask; without a task, and where the model is cut among processes, nothing is tried out.
    """
    import torch

    from vitrine.runs.validation import num_judged
    from vitrine.runtime.processes import largest

    recipe, training = setting.recipe, setting.recipe.training
    pace = pace_of(setting, processes, module, task)
    steps = training.total_steps - done
    seconds = pace.seconds(steps * training.batch_size / processes.world_size)
    if processes.device.type == "cpu":
        trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
        seconds += steps * trained * UPDATE_SECONDS_A_WEIGHT
    forward = 1.0 if training.trains == "head" else FORWARD_SHARE
    if training.compiles_on(processes.device.type):
        seconds += COMPILING_SECONDS
    judged = num_judged(setting.splits, recipe) / processes.world_size
    times = evaluations_after(done, every=training.evaluate_every, total=training.total_steps)
    times += bool(setting.wants_report and recipe.needs_labels)
    seconds += pace.seconds(times * judged, share=forward)
    return float(largest(torch.tensor(seconds, device=processes.device), processes))


def evaluations_after(done: int, *, every: int | None, total: int) -> int:
    """Count the evaluations of a run that are still to come; there is always one at the end."""
    if every is None:
        return 1
    return total // every - done // every + bool(total % every)


def pace_of(setting: "Setting", processes: "Processes", module: "nn.Module", task: "Task | None") -> Pace:
    """Measure how fast images are read and learned from, or reckon the latter."""
    import torch

    from vitrine.runs.training_batches import is_resident
    from vitrine.runtime.cores import available_cores

    batch, reading = few_images(setting, processes.device)
    if is_resident(setting, processes):
        reading = 0.0
    cores = available_cores()
    return Pace(
        learning=learning_seconds(setting, processes, module, task, batch),
        reading=reading,
        workers=min(setting.workers, cores),
        threads=None if processes.device.type != "cpu" else min(torch.get_num_threads(), cores),
    )


def learning_seconds(
    setting: "Setting", processes: "Processes", module: "nn.Module", task: "Task | None", batch: "Batch"
) -> float:
    """Return the seconds that learning from one image takes: by a trial, or else by its operations."""
    from vitrine.runtime.rate import measured_matmul_rate
    from vitrine.training.graphs import can_record

    training, kind = setting.recipe.training, processes.device.type
    flops = operations_an_image(setting)
    is_cut = setting.shard and processes.world_size > 1
    is_short = flops <= LONGEST_IMAGE_SECONDS * SURE_RATE.get(kind, SURE_RATE["cpu"])
    tried = None
    if task is not None and is_short and not is_cut:
        tried = tried_out(module, task, batch, setting, processes)
    if tried is not None and training.compiles_on(kind):
        tried *= COMPILED_SHARE
    is_recorded = training.graphs and can_record(processes.device, world_size=processes.world_size)
    if tried is not None and not is_recorded:
        return tried
    rate, _ = measured_matmul_rate("fp32" if training.precision == "fp32" else "bf16", device=kind)
    if tried is None:
        return flops / (SHARE_OF_RATE.get(kind, 0.5) * rate)
    return min(tried, flops / (RECORDED_SHARE_OF_RATE * rate))


def few_images(setting: "Setting", device: "torch.device") -> "tuple[Batch, float]":
    """Read some training images in this thread; return them and the seconds of one."""
    import numpy as np
    import torch

    from vitrine.data.loading.loader import Batch, Loader
    from vitrine.data.loading.order import Rows
    from vitrine.runs.training_batches import train_view

    source = setting.splits["train"]
    loader = Loader(source, train_view(setting), batch_size=1, num_workers=0, keep_going=True)
    began, found = time.perf_counter(), []
    for batch in loader.training_batches(stop_step=min(MOST_READ, len(source))):
        found.append(batch)
        seconds = time.perf_counter() - began
        if seconds > READING_SECONDS:
            break
    rows = Rows(
        0,
        *(
            np.concatenate([getattr(batch.rows, name) for batch in found])
            for name in ("indices", "epochs", "positions")
        ),
    )
    images, labels = (torch.cat([getattr(batch, name) for batch in found]) for name in ("images", "labels"))
    together = Batch(images=images.to(device), labels=labels.to(device), rows=rows, failures={})
    return together, seconds / len(found)


def tried_out(
    module: "nn.Module", task: "Task", batch: "Batch", setting: "Setting", processes: "Processes"
) -> float | None:
    """Learn from a few images, for nothing; return the seconds of one, or None where memory does not do."""
    import torch

    from vitrine.training.optimizer import freeze
    from vitrine.training.step import computing_in

    training, device = setting.recipe.training, processes.device
    share = training.batch_size // processes.world_size
    own = min(training.micro_batch or share, share)
    was_training = module.training
    freeze(module.to(device).train(), training)

    def fitting(size: float) -> int:
        # No more than there will be at a time, and pairs where the batch has any: mixing wants them.
        return min(max(2 * int(min(size, own) / 2), 2), share)

    def once(size: int) -> float:
        began = time.perf_counter()
        parts = task.prepare(repeated(batch, size))
        with computing_in(training.precision, device.type):
            losses, _ = task.loss_of(module, parts)
        torch.autograd.backward(losses.sum())
        module.zero_grad(set_to_none=True)
        if device.type != "cpu":
            torch.accelerator.synchronize()
        return (time.perf_counter() - began) / size

    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            if device.type == "cpu":
                first = once(fitting(2))  # slow, since memory is got and kernels are chosen
                if fitting(2) * first > LONGEST_PASS_SECONDS:
                    return first
                times = [once(fitting(2))]
                end = time.perf_counter() + LEARNING_SECONDS
                # A new size chooses kernels anew: it takes two passes to know it.
                size = fitting(min(LEARNING_SECONDS / 2 / times[0], MOST_LEARNED))
                while len(times) < MOST_PASSES and time.perf_counter() < end:
                    times.append(once(size))
                return statistics.median(times[2:] or times)
            # An accelerator is quick with what fills it: as many images as it will have, as far as time allows.
            rate = SURE_RATE.get(device.type, SURE_RATE["cpu"])
            size = fitting(LEARNING_SECONDS * rate / operations_an_image(setting))
            once(size)
            return once(size)
    except torch.OutOfMemoryError:
        return None
    finally:
        module.zero_grad(set_to_none=True)
        module.train(was_training)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def repeated(batch: "Batch", size: int) -> "Batch":
    """Make a batch of so many images from those of another."""
    import numpy as np
    import torch

    from vitrine.data.loading.loader import Batch
    from vitrine.data.loading.order import Rows

    chosen = np.arange(size) % len(batch)
    rows, numbers = batch.rows, torch.from_numpy(chosen).to(batch.images.device)
    return Batch(
        images=batch.images[numbers],
        labels=batch.labels[numbers],
        rows=Rows(rows.step, rows.indices[chosen], rows.epochs[chosen], rows.positions[chosen]),
        failures={},
    )


def operations_an_image(setting: "Setting") -> float:
    """Count the operations that learning from one image takes: backwards twice as many as forwards."""
    from vitrine.models.cost import TRAINING_FLOPS_PER_MAC, cost_of

    recipe, config = setting.recipe, setting.model.config
    macs = cost_of(config).macs
    is_frozen = recipe.training.trains == "head"
    flops = (FORWARD_FLOPS_PER_MAC if is_frozen else TRAINING_FLOPS_PER_MAC) * macs * recipe.passes(config)
    if recipe.objective == "dino":
        flops += FORWARD_FLOPS_PER_MAC * 2 * macs  # the teacher sees the two large views
    if setting.teacher is not None:
        # Kept answers are asked for once for each image, not at every epoch.
        times = 1.0
        if recipe.distillation.caches:
            seen = recipe.training.total_steps * recipe.training.batch_size
            times = min(len(setting.splits["train"]) / seen, 1.0)
        flops += times * FORWARD_FLOPS_PER_MAC * cost_of(setting.teacher.model.config).macs
    return flops
