"""How many images a device takes at a time, chosen before a run."""

import dataclasses
from pathlib import Path

import pytest
import torch

from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import create_model
from vitrine.recipes import find_recipe
from vitrine.runs.micro_batches import (
    SHARE_OF_MACHINE,
    chosen_micro_batch,
    fitting_micro_batch,
    memory_of_step,
)
from vitrine.runs.run_plan import memory_in_words
from vitrine.runs.training_run import Setting
from vitrine.runtime.processes import Processes

ALONE = Processes()
SHARDED = Processes(world_size=2, device=torch.device("cuda"))


def setting(*, shard: bool = False, micro_batch: int | None = None, **options: object) -> Setting:
    recipe = find_recipe("demo")
    training = dataclasses.replace(recipe.training, micro_batch=micro_batch)
    model = create_model("ViT-Ti/16", num_classes=10, image_size=32, depth=12, **options)  # type: ignore[arg-type]
    return Setting(
        model=model, preprocess=Preprocess(size=(32, 32)), splits={},
        recipe=dataclasses.replace(recipe, training=training), folder=Path("run"), verb="pretrain", data="",
        device="cpu", workers=0, shard=shard,
    )  # fmt: skip


def test_the_micro_batch_is_the_largest_half_that_is_predicted_to_fit() -> None:
    run = setting(shard=True)
    assert run.recipe.training.batch_size == 128
    for size in (64, 32, 16, 1):
        room = memory_of_step(run, SHARDED, micro_batch=size)
        assert fitting_micro_batch(run, SHARDED, room=room) == size
        assert fitting_micro_batch(run, SHARDED, room=room - 1) == max(size // 2, 1)
    assert fitting_micro_batch(run, SHARDED, room=1e15) == 64


def test_recomputed_activations_let_more_images_fit() -> None:
    room = memory_of_step(setting(shard=True), SHARDED, micro_batch=8)
    frugal = setting(shard=True, activation_checkpointing=True)
    assert fitting_micro_batch(frugal, SHARDED, room=room) > 8


def test_a_small_machine_takes_few_images_at_a_time_and_the_plan_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = setting()
    room = memory_of_step(run, ALONE, micro_batch=32)
    monkeypatch.setattr("vitrine.runtime.memory.memory_of", lambda device: room / SHARE_OF_MACHINE + 1)
    assert chosen_micro_batch(run, ALONE) == 32
    assert chosen_micro_batch(run, Processes(world_size=2)) < 32  # both need it at once
    assert "for 32 images at a time, 4 times a step" in memory_in_words(setting(micro_batch=32), ALONE)


def test_what_was_asked_for_and_what_fits_as_it_is_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_micro_batch(setting(micro_batch=100), ALONE) == 100
    assert chosen_micro_batch(setting(), ALONE) is None
    monkeypatch.setattr("vitrine.runtime.memory.memory_of", lambda device: None)  # a system that does not say
    assert chosen_micro_batch(setting(), ALONE) is None


def test_a_gpu_is_tried_out_and_a_plan_that_does_not_fit_says_what_will_happen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Processes(device=torch.device("cuda"))
    assert chosen_micro_batch(setting(), gpu) is None
    monkeypatch.setattr("vitrine.runtime.memory.memory_of", lambda device: 2**30)
    assert "halved" not in memory_in_words(setting(), gpu)
    monkeypatch.setattr("vitrine.runtime.memory.memory_of", lambda device: 2**20)
    assert "more than the 1 MiB there are: the images at a time are halved until they fit" in memory_in_words(
        setting(), gpu
    )
