"""Estimate the time of a run before its first step, by a trial that reads a few images and trains on them.

The trial does not change the run: weights keep their values, gradients are discarded, random numbers are restored.
Models that need a second per image are estimated by their operations instead.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from vitrine.data.loading.loader import Batch, Loader
from vitrine.data.loading.order import Rows
from vitrine.data.preparing.annotated_view import AnyView
from vitrine.data.sources.source import Source
from vitrine.models.cost import FORWARD_SHARE, TRAINING_FLOPS_PER_MAC, cost_of
from vitrine.recipes.recipe import Recipe
from vitrine.runs.phases import cost_of_pass, mean_cost
from vitrine.runs.records import StartingModel
from vitrine.runs.run_data import RunData
from vitrine.runs.task import is_resident, training_view
from vitrine.runs.validation import num_evaluated
from vitrine.runtime.devices import computing_in
from vitrine.runtime.hardware import measured_matmul_rate
from vitrine.runtime.processes import Processes, largest
from vitrine.runtime.threads import available_cores
from vitrine.training.config import TrainingConfig
from vitrine.training.graphs import can_record
from vitrine.training.optimizer import freeze
from vitrine.training.phases import phase_at
from vitrine.training.task import Task

# Seconds of the trial for reading and for training, and its maximum numbers of images and passes.
READING_SECONDS, TRAINING_SECONDS = 0.25, 0.8
MOST_READ, MOST_TRAINED, MOST_PASSES = 16, 16, 5
# Operations per second that every device of the kind reaches: they show whether a trial is short enough.
SURE_RATE = {"cpu": 3e10, "cuda": 1e14}
LONGEST_IMAGE_SECONDS, LONGEST_PASS_SECONDS = 1.0, 1.5
# A training step reaches half of the matmul rate of an H200 (docs/experiments.md), two thirds of a CPU's (ViT-B/16).
SHARE_OF_RATE = {"cpu": 0.65, "cuda": 0.5}
# A compiled step takes 0.7 of the trial's time (docs/experiments.md); compiling takes about a minute.
COMPILED_SHARE, COMPILING_SECONDS = 0.7, 60.0
# The trial launches its kernels one by one; for a small model the launches take longer than the kernels. A recorded
# step (a CUDA graph) saves that time: even a ViT of width 256 with heavy augmentation then reaches 0.22 of the matmul
# rate (docs/experiments.md, CIFAR-10).
RECORDED_SHARE_OF_RATE = 0.2
# Clipping and AdamW on two cores: 22 ms for 5.5 million weights. Accelerators overlap it with other work.
UPDATE_SECONDS_PER_WEIGHT = 4e-9
FORWARD_FLOPS_PER_MAC = 2


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds per image."""

    training: float
    """On the device."""
    reading: float
    """By one thread."""
    workers: int
    threads: int | None
    """Cores that the device and the workers share; None if the device has its own."""

    def seconds(self, images: float, *, share: float = 1.0) -> float:
        """Return the time of some images, with `share` of the device's work on each."""
        training = share * self.training
        if not self.workers:
            return images * (training + self.reading)
        alone = self.reading / self.workers
        if self.threads is None:
            return images * max(training, alone)
        return images * max(training + self.reading / self.threads, alone)


def expected_seconds(
    module: nn.Module,
    task: Task | None,
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    workers: int,
    processes: Processes,
    is_sharded: bool,
    done: int,
) -> float:
    """Return the seconds of the steps after `done` and of their evaluations.

    Every process must call it; without a task, and for sharded models, there is no trial.
    """
    training = recipe.training
    pace = pace_of(
        module, None if is_sharded else task, start, data, recipe, workers=workers, processes=processes
    )
    steps = training.total_steps - done
    cost = mean_cost(start.model.config, recipe, done=done)
    seconds = pace.seconds(steps * training.batch_size / processes.world_size, share=cost)
    if processes.device.type == "cpu":
        trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
        seconds += steps * trained * UPDATE_SECONDS_PER_WEIGHT
    if training.compiles_on(processes.device.type):
        seconds += COMPILING_SECONDS
    images = num_evaluated(data, recipe) / processes.world_size
    times = evaluations_after(done, every=training.evaluate_every, total=training.total_steps)
    forward = 1.0 if training.trains == "head" else FORWARD_SHARE
    seconds += pace.seconds(times * images, share=forward)
    return float(largest(torch.tensor(seconds, device=processes.device), processes))


def pace_of(
    module: nn.Module,
    task: Task | None,
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    workers: int,
    processes: Processes,
) -> Pace:
    """Measure how fast images are read and trained on, or estimate the latter."""
    view, cores = training_view(recipe, start.preprocess), available_cores()
    batch, reading = read_some(data.train, view, processes.device)
    flops = flops_per_image(start, recipe, num_images=len(data.train))
    # The trial takes a pass of the first phase.
    cost = cost_of_pass(start.model.config, phase_at(0, recipe.phases, total_steps=1))
    seconds = training_seconds(module, task, batch, recipe.training, flops=cost * flops, processes=processes)
    return Pace(
        training=seconds / cost,
        reading=0.0 if is_resident(data.train, view, processes.device) else reading,
        workers=min(workers, cores),
        threads=None if processes.device.type != "cpu" else min(torch.get_num_threads(), cores),
    )


def evaluations_after(done: int, *, every: int | None, total: int) -> int:
    """Count the evaluations that are left; there is always one at the end."""
    if every is None:
        return 1
    return total // every - done // every + bool(total % every)


def training_seconds(
    module: nn.Module,
    task: Task | None,
    batch: Batch,
    training: TrainingConfig,
    *,
    flops: float,
    processes: Processes,
) -> float:
    """Return the seconds of training on one image: by a trial, or else by its operations."""
    kind = processes.device.type
    is_short = flops <= LONGEST_IMAGE_SECONDS * SURE_RATE.get(kind, SURE_RATE["cpu"])
    tried = None
    if task is not None and is_short:
        tried = tried_out(module, task, batch, training, flops=flops, processes=processes)
    if tried is not None and training.compiles_on(kind):
        tried *= COMPILED_SHARE
    is_recorded = training.graphs and can_record(processes.device, world_size=processes.world_size)
    if tried is not None and not is_recorded:
        return tried
    rate, _ = measured_matmul_rate("fp32" if training.precision == "fp32" else "bf16", device=kind)
    if tried is None:
        return flops / (SHARE_OF_RATE.get(kind, 0.5) * rate)
    return min(tried, flops / (RECORDED_SHARE_OF_RATE * rate))


def read_some(train: Source, view: AnyView, device: torch.device) -> tuple[Batch, float]:
    """Read some training images in this thread; return them and the seconds per image."""
    loader = Loader(train, view, batch_size=1, num_workers=0, keep_going=True)
    began, seconds = time.perf_counter(), 0.0
    read: list[Batch] = []
    for batch in loader.training_batches(stop_step=min(MOST_READ, len(train))):
        read.append(batch)
        seconds = time.perf_counter() - began
        if seconds > READING_SECONDS:
            break
    rows = Rows(
        0,
        *(
            np.concatenate([getattr(batch.rows, name) for batch in read])
            for name in ("indices", "epochs", "positions")
        ),
    )
    images, labels = (torch.cat([getattr(batch, name) for batch in read]) for name in ("images", "labels"))
    together = Batch(images=images.to(device), labels=labels.to(device), rows=rows, failures={})
    return together, seconds / len(read)


def tried_out(
    module: nn.Module,
    task: Task,
    batch: Batch,
    training: TrainingConfig,
    *,
    flops: float,
    processes: Processes,
) -> float | None:
    """Train on a few images and discard the result; return the seconds per image, or None if memory is too small."""
    device = processes.device
    share = training.batch_size // processes.world_size
    own = min(training.micro_batch or share, share)
    was_training = module.training
    freeze(module.to(device).train(), training)

    def even(size: float) -> int:
        # No more than a micro-batch, and pairs if the batch has any: mixing needs them.
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
        with (
            keeping_statistics(module),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            if device.type == "cpu":
                return timed_on_cpu(once, even)
            # An accelerator is fast only if it is full, so the trial uses as many images as a step, if time allows.
            size = even(TRAINING_SECONDS * SURE_RATE.get(device.type, SURE_RATE["cpu"]) / flops)
            once(size)
            return once(size)
    except torch.OutOfMemoryError:
        return None
    finally:
        module.zero_grad(set_to_none=True)
        module.train(was_training)
        if device.type == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def keeping_statistics(module: nn.Module) -> Iterator[None]:
    """Leave the statistics of batch norms as they are: how many passes a trial makes depends on the clock."""
    norms = [one for one in module.modules() if isinstance(one, nn.modules.batchnorm._NormBase)]
    before = [{name: value.clone() for name, value in one.named_buffers()} for one in norms]
    try:
        yield
    finally:
        with torch.no_grad():
            for one, values in zip(norms, before, strict=True):
                for name, buffer in one.named_buffers():
                    buffer.copy_(values[name])


def timed_on_cpu(once: Callable[[int], float], even: Callable[[float], int]) -> float:
    """Return the seconds of one image: `once` times a pass, `even` rounds a size to a possible one."""
    first = once(even(2))  # slow: memory is allocated and kernels are chosen
    times = [once(even(2))]
    if even(2) * first > LONGEST_PASS_SECONDS:
        return times[0]
    end = time.perf_counter() + TRAINING_SECONDS
    # A new size chooses kernels again: the second pass shows its time.
    size = even(min(TRAINING_SECONDS / 2 / times[0], MOST_TRAINED))
    while len(times) < MOST_PASSES and time.perf_counter() < end:
        times.append(once(size))
    return statistics.median(times[2:] or times)


def repeated(batch: Batch, size: int) -> Batch:
    """Build a batch of this size from the images of another."""
    chosen = np.arange(size) % len(batch)
    rows, numbers = batch.rows, torch.from_numpy(chosen).to(batch.images.device)
    return Batch(
        images=batch.images[numbers],
        labels=batch.labels[numbers],
        rows=Rows(rows.step, rows.indices[chosen], rows.epochs[chosen], rows.positions[chosen]),
        failures={},
    )


def flops_per_image(start: StartingModel, recipe: Recipe, *, num_images: int) -> float:
    """Count the operations of training on one image: the backward pass has twice as many as the forward pass."""
    objective, config, training = recipe.objective, start.model.config, recipe.training
    macs = cost_of(config, patches=start.preprocess.max_patches).macs
    per_mac = FORWARD_FLOPS_PER_MAC if training.trains == "head" else TRAINING_FLOPS_PER_MAC
    extra = objective.forward_macs(
        macs,
        teacher_macs=0 if start.teacher is None else cost_of(start.teacher.model.config).macs,
        visits=training.total_steps * training.batch_size / num_images,
    )
    return per_mac * macs * objective.images_per_image(config) + FORWARD_FLOPS_PER_MAC * extra
