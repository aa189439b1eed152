"""The time that a plan names, and that finding it out changes nothing."""

import dataclasses
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.generated import GeneratedSource
from vitrine.models import create_model
from vitrine.recipes import find_recipe
from vitrine.recipes.recipe import Recipe
from vitrine.runs import training_batches
from vitrine.runs.expected_time import (
    Pace,
    evaluations_after,
    expected_seconds,
    operations_an_image,
    pace_of,
)
from vitrine.runs.run_plan import plan_of
from vitrine.runs.training_run import Setting
from vitrine.runs.training_task import make_task, trained_module
from vitrine.runtime import rate
from vitrine.runtime.processes import Processes
from vitrine.training import graphs
from vitrine.training.task import Task

ALONE = Processes()


def setting(recipe: Recipe | None = None, **training: object) -> Setting:
    recipe = recipe or find_recipe("demo")
    recipe = dataclasses.replace(
        recipe, training=dataclasses.replace(recipe.training, total_steps=40, batch_size=8, **training)
    )
    torch.manual_seed(0)
    classes = 10 if recipe.needs_labels else None
    model = create_model(
        "ViT-Ti/16", num_classes=classes, image_size=32, patch_size=8, width=32, mlp_width=64, depth=2, num_heads=2,
        dropout=0.1,
    )  # fmt: skip
    train, val = (GeneratedSource(count=count, size=32, label="shape", seed=1) for count in (32, 12))
    return Setting(
        model=model, preprocess=Preprocess(size=(32, 32)), splits={"train": train, "val": val}, recipe=recipe,
        folder=Path("run"), verb="pretrain", data="", device="cpu", workers=0,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["demo", "masked-patches", "autoencoder", "dino"])
def test_looking_how_long_it_takes_changes_neither_weights_nor_random_numbers(name: str) -> None:
    run = setting(find_recipe(name))
    module = trained_module(run)
    task = make_task(run, ALONE)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    numbers, is_training = torch.get_rng_state(), module.training
    assert expected_seconds(run, ALONE, module, task, done=0) > 0
    assert torch.equal(torch.get_rng_state(), numbers)
    assert module.training == is_training
    assert all(parameter.grad is None for parameter in module.parameters())
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("micro_batch", [1, 3, 8])
def test_mixing_and_odd_micro_batches_can_be_tried_out(micro_batch: int) -> None:
    recipe = find_recipe("demo")
    recipe = dataclasses.replace(recipe, augment=dataclasses.replace(recipe.augment, mixup=0.5))
    run = setting(recipe, micro_batch=micro_batch)
    assert expected_seconds(run, ALONE, run.model, make_task(run, ALONE), done=0) > 0


def slowed(task: Task, seconds_an_image: float) -> Task:
    def loss_of(module: nn.Module, parts: tuple[torch.Tensor, ...]) -> object:
        time.sleep(seconds_an_image * len(parts[0]))
        return task.loss_of(module, parts)

    return dataclasses.replace(task, loss_of=loss_of)


def test_the_time_is_that_of_the_steps_and_evaluations_that_are_left() -> None:
    """Twenty milliseconds an image, which hide what the small model itself takes."""
    run = dataclasses.replace(setting(evaluate_every=10), wants_report=False)
    task = slowed(make_task(run, ALONE), 0.02)
    found = expected_seconds(run, ALONE, run.model, task, done=0)
    expected = 0.02 * (40 * 8 + 4 * 12 / 3)
    assert expected <= found <= 2 * expected
    rest = expected_seconds(run, ALONE, run.model, task, done=30)
    assert 0.02 * (10 * 8 + 12 / 3) <= rest < found / 2


def test_a_slow_model_is_not_tried_for_long() -> None:
    run = setting()
    began = time.monotonic()
    pace = pace_of(run, ALONE, run.model, slowed(make_task(run, ALONE), 0.8))
    assert time.monotonic() - began < 2.5  # two images, once
    assert 0.8 <= pace.learning < 1.1


def test_a_model_of_many_operations_is_reckoned_and_not_run() -> None:
    run = dataclasses.replace(setting(), model=create_model("ViT-B/16", num_classes=10))

    def never(module: nn.Module, parts: object) -> object:
        raise AssertionError("this model takes seconds for an image")

    task = dataclasses.replace(make_task(setting(), ALONE), loss_of=never)
    pace = pace_of(run, ALONE, run.model, task)
    # 105 GFLOP an image: at half of 20 GFLOP/s to 2 TFLOP/s.
    assert 0.1 < pace.learning < 10.5


def test_a_set_that_the_device_holds_is_not_read_while_a_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run = setting()
    task = make_task(run, ALONE)
    assert pace_of(run, ALONE, run.model, task).reading > 0
    monkeypatch.setattr(training_batches, "is_resident", lambda setting, processes: True)
    assert pace_of(run, ALONE, run.model, task).reading == 0


def test_recorded_steps_are_not_reckoned_with_the_time_of_their_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched, recorded = (setting(graphs=wanted, compile=False) for wanted in (False, True))
    task = slowed(make_task(launched, ALONE), 0.02)
    monkeypatch.setattr(graphs, "can_record", lambda device, *, world_size: True)
    monkeypatch.setattr(rate, "measured_matmul_rate", lambda precision, *, device: (1e12, ""))
    assert pace_of(launched, ALONE, launched.model, task).learning > 0.02
    found = pace_of(recorded, ALONE, recorded.model, task).learning
    assert found == pytest.approx(operations_an_image(recorded) / (0.2 * 1e12))
    # A step that is no longer than its kernels stays as it was seen.
    monkeypatch.setattr(rate, "measured_matmul_rate", lambda precision, *, device: (1e3, ""))
    assert 0.02 < pace_of(recorded, ALONE, recorded.model, task).learning < 0.1


def test_readers_work_beside_an_accelerator_and_share_the_cores_with_a_cpu() -> None:
    on_gpu = Pace(learning=0.001, reading=0.004, workers=2, threads=None)
    assert on_gpu.seconds(1000) == pytest.approx(2.0)  # two readers are the limit
    on_cpu = Pace(learning=0.03, reading=0.004, workers=2, threads=2)
    assert on_cpu.seconds(1000) == pytest.approx(32.0)
    assert on_cpu.seconds(1000, share=1 / 3) == pytest.approx(12.0)
    alone = dataclasses.replace(on_cpu, workers=0)
    assert alone.seconds(1000) == pytest.approx(34.0)


@pytest.mark.parametrize(
    ("done", "every", "count"), [(0, None, 1), (0, 10, 10), (0, 30, 4), (50, 10, 5), (90, 30, 1), (99, 30, 1)]
)
def test_evaluations_to_come_are_counted(done: int, every: int | None, count: int) -> None:
    assert evaluations_after(done, every=every, total=100) == count


def test_the_plan_names_all_that_is_known_before_the_first_step() -> None:
    run = setting(evaluate_every=10)
    said = plan_of(run, ALONE, seconds=360.0)
    for part in (
        "10 classes", "32x32 px", "32 train, 12 val images", "40 steps of 8 (10 epochs), judged every 10", "fp32",
        "1 MiB for 8 images at a time", "about 6 min", "to run",
    ):  # fmt: skip
        assert part in said, part
    tuned = dataclasses.replace(run, verb="finetune")
    assert "a new head for 10 classes" in plan_of(tuned, ALONE, seconds=1.0)
    assert "30 steps left" in plan_of(run, ALONE, seconds=1.0, done=10)
