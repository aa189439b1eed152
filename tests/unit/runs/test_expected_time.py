"""The time that a plan names, and that finding it out changes nothing."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from unit.runs.simple import ALONE, SimpleRun, simple_run
from variations import costly

from vitrine.models import create_model
from vitrine.recipes import find_recipe
from vitrine.runs import expected_time
from vitrine.runs.expected_time import (
    UPDATE_SECONDS_PER_WEIGHT,
    Pace,
    evaluations_after,
    expected_seconds,
    flops_per_image,
    pace_of,
)
from vitrine.training.task import Task

NAMES = ("demo", "masked-patches", "autoencoder", "dino", "ibot", "moco")


def seconds_of(run: SimpleRun, module: nn.Module, task: Task, *, done: int) -> float:
    return expected_seconds(
        module, task, run.start, run.data, run.recipe, workers=0, processes=ALONE, is_sharded=False, done=done
    )


def pace(run: SimpleRun, task: Task) -> Pace:
    return pace_of(run.start.model, task, run.start, run.data, run.recipe, workers=0, processes=ALONE)


@pytest.mark.parametrize("name", costly(NAMES, quick=("demo", "autoencoder", "ibot")))
def test_looking_how_long_it_takes_changes_neither_weights_nor_random_numbers(name: str) -> None:
    run = simple_run(find_recipe(name))
    module = run.module()
    task = run.task()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    numbers, is_training = torch.get_rng_state(), module.training
    assert seconds_of(run, module, task, done=0) > 0
    assert torch.equal(torch.get_rng_state(), numbers)
    assert module.training == is_training
    assert all(parameter.grad is None for parameter in module.parameters())
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("micro_batch", [1, 3, 8])
def test_mixing_and_odd_micro_batches_can_be_tried_out(micro_batch: int) -> None:
    recipe = find_recipe("demo")
    recipe = dataclasses.replace(recipe, augment=dataclasses.replace(recipe.augment, mixup=0.5))
    run = simple_run(recipe, micro_batch=micro_batch)
    assert seconds_of(run, run.start.model, run.task(), done=0) > 0


class Clock:
    """A clock on which nothing takes time but what a test says; `images` are those that were trained on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.images = 0.0, 0
        monkeypatch.setattr(expected_time, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def slowed(self, task: Task, seconds_per_image: float) -> Task:
        def loss_of(module: nn.Module, parts: tuple[torch.Tensor, ...]) -> object:
            self.images += len(parts[0])
            self.now += seconds_per_image * len(parts[0])
            return task.loss_of(module, parts)

        return dataclasses.replace(task, loss_of=loss_of)


def test_the_time_is_that_of_the_steps_and_evaluations_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    run, clock = simple_run(evaluate_every=10), Clock(monkeypatch)
    task = clock.slowed(run.task(), 0.02)
    weights = sum(parameter.numel() for parameter in run.start.model.parameters())
    update = UPDATE_SECONDS_PER_WEIGHT * weights
    # Steps of 8 images and evaluations of 12, a third as long.
    whole, rest = (seconds_of(run, run.start.model, task, done=done) for done in (0, 30))
    assert whole == pytest.approx(0.02 * (40 * 8 + 4 * 12 / 3) + 40 * update)
    assert rest == pytest.approx(0.02 * (10 * 8 + 12 / 3) + 10 * update)


def test_a_slow_model_is_not_tried_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    run, clock = simple_run(), Clock(monkeypatch)
    assert pace(run, clock.slowed(run.task(), 0.8)).training == pytest.approx(0.8)
    assert clock.images == 4  # two to warm up, two that count


def test_a_model_of_many_operations_is_reckoned_and_not_run() -> None:
    run = simple_run()
    start = dataclasses.replace(run.start, model=create_model("ViT-B/16", num_classes=10))

    def never(module: nn.Module, parts: object) -> object:
        raise AssertionError("this model takes seconds for an image")

    task = dataclasses.replace(run.task(), loss_of=never)
    found = pace(dataclasses.replace(run, start=start), task)
    # 105 GFLOP per image: at half of 2 GFLOP/s (a core that many share) to 2 TFLOP/s.
    assert 0.1 < found.training < 105


def test_a_set_that_the_device_holds_is_not_read_while_a_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simple_run()
    task = run.task()
    assert pace(run, task).reading > 0
    monkeypatch.setattr(expected_time, "is_resident", lambda train, view, device: True)
    assert pace(run, task).reading == 0


def test_recorded_steps_are_not_reckoned_with_the_time_of_their_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched, recorded = (simple_run(graphs=wanted, compile=False) for wanted in (False, True))
    task = Clock(monkeypatch).slowed(launched.task(), 0.02)
    monkeypatch.setattr(expected_time, "can_record", lambda device, *, world_size: True)
    monkeypatch.setattr(expected_time, "measured_matmul_rate", lambda precision, *, device: (1e12, ""))
    assert pace(launched, task).training == pytest.approx(0.02)
    found = pace(recorded, task).training
    flops = flops_per_image(recorded.start, recorded.recipe, num_images=32)
    assert found == pytest.approx(flops / (0.2 * 1e12))
    # A step that is no longer than its kernels stays as it was seen.
    monkeypatch.setattr(expected_time, "measured_matmul_rate", lambda precision, *, device: (1e3, ""))
    assert pace(recorded, task).training == pytest.approx(0.02)


def test_readers_work_beside_an_accelerator_and_share_the_cores_with_a_cpu() -> None:
    on_gpu = Pace(training=0.001, reading=0.004, workers=2, threads=None)
    assert on_gpu.seconds(1000) == pytest.approx(2.0)  # two readers are the limit
    on_cpu = Pace(training=0.03, reading=0.004, workers=2, threads=2)
    assert on_cpu.seconds(1000) == pytest.approx(32.0)
    assert on_cpu.seconds(1000, share=1 / 3) == pytest.approx(12.0)
    alone = dataclasses.replace(on_cpu, workers=0)
    assert alone.seconds(1000) == pytest.approx(34.0)


@pytest.mark.parametrize(
    ("done", "every", "count"), [(0, None, 1), (0, 10, 10), (0, 30, 4), (50, 10, 5), (90, 30, 1), (99, 30, 1)]
)
def test_evaluations_to_come_are_counted(done: int, every: int | None, count: int) -> None:
    assert evaluations_after(done, every=every, total=100) == count
