"""The plan of a run: how many images at a time, how much memory and disk, and how it is shown."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from unit.runs.simple import ALONE, SimpleRun, simple_run

from vitrine.checkpoints.opening import at_native_aspect
from vitrine.cli.views.finetune import closed_form_lines
from vitrine.cli.views.training_plan import plan_lines
from vitrine.errors import CheckpointError, TryOption
from vitrine.models import ModelConfig, create_model
from vitrine.models.cost import cost_of
from vitrine.recipes import Recipe, find_recipe
from vitrine.runs.expected_time import flops_per_image
from vitrine.runs.plan import (
    SHARE_OF_MACHINE,
    RunPlan,
    choose_micro_batch,
    fitting_micro_batch,
    plan_of,
    require_disk_space,
    step_memory,
)
from vitrine.runs.records import ClosedFormScore, Contender, Execution, RunOutput
from vitrine.runs.starting_model import suggest_smaller_size
from vitrine.runtime.processes import Processes
from vitrine.runtime.progress import listening
from vitrine.runtime.run_folder import RunFolder

SHARDED = Processes(world_size=2, device=torch.device("cuda"))
GPU = Processes(device=torch.device("cuda"))


def config(**options: object) -> ModelConfig:
    return create_model("ViT-Ti/16", num_classes=10, image_size=32, depth=12, **options).config  # type: ignore[arg-type]


def recipe(*, micro_batch: int | None = None) -> Recipe:
    demo = find_recipe("demo")
    return dataclasses.replace(demo, training=dataclasses.replace(demo.training, micro_batch=micro_batch))


def planned(
    run: SimpleRun, *, verb: str = "pretrain", processes: Processes = ALONE, done: int = 0
) -> RunPlan:
    output = RunOutput(folder=RunFolder(Path("run")), verb=verb)
    return plan_of(
        run.start, run.data, run.recipe, execution=Execution(workers=0), output=output, processes=processes,
        seconds=360.0, done=done,
    )  # fmt: skip


def shown(plan: RunPlan) -> str:
    return "\n".join(map(str, plan_lines(plan)))


def test_the_micro_batch_is_the_largest_half_that_is_predicted_to_fit() -> None:
    chosen, model = recipe(), config()
    assert chosen.training.batch_size == 128
    for size in (64, 32, 16, 1):
        needed = step_memory(chosen, model, micro_batch=size, processes=SHARDED, shard=True)
        for available, fits in ((needed, size), (needed - 1, max(size // 2, 1)), (1e15, 64)):
            found = fitting_micro_batch(chosen, model, processes=SHARDED, shard=True, available=available)
            assert found == fits


def test_recomputed_activations_let_more_images_fit() -> None:
    available = step_memory(recipe(), config(), micro_batch=8, processes=SHARDED, shard=True)
    frugal = config(activation_checkpointing=True)
    assert fitting_micro_batch(recipe(), frugal, processes=SHARDED, shard=True, available=available) > 8


def test_a_small_machine_takes_few_images_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = step_memory(recipe(), config(), micro_batch=32, processes=ALONE, shard=False)
    monkeypatch.setattr("vitrine.runs.plan.memory_of", lambda device: needed / SHARE_OF_MACHINE + 1)
    assert choose_micro_batch(recipe(), config(), processes=ALONE, shard=False) == 32
    two = Processes(world_size=2)
    assert choose_micro_batch(recipe(), config(), processes=two, shard=False) < 32  # both need it at once


def test_a_micro_batch_that_is_set_or_fits_as_it_is_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_micro_batch(recipe(micro_batch=100), config(), processes=ALONE, shard=False) == 100
    assert choose_micro_batch(recipe(), config(), processes=ALONE, shard=False) is None
    monkeypatch.setattr("vitrine.runs.plan.memory_of", lambda device: None)  # a system that does not tell
    assert choose_micro_batch(recipe(), config(), processes=ALONE, shard=False) is None
    assert choose_micro_batch(recipe(), config(), processes=GPU, shard=False) is None  # a GPU is tried


def test_the_plan_shows_model_data_schedule_memory_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simple_run(evaluate_every=10, precision="fp32")
    text = shown(planned(run))
    for part in (
        "10 classes", "32x32 px", "32 train, 12 val images", "40 steps of 8 (10 epochs)", "every 10 steps",
        "fp32", "1 MiB for 8 images", "about 6 min", "to run",
    ):  # fmt: skip
        assert part in text, part
    assert "new head for 10 classes" in shown(planned(run, verb="finetune"))
    folds = dataclasses.replace(planned(run, verb="finetune"), num_networks=3)
    assert "18 min for 3 networks" in shown(folds) and "6 min if the first" in shown(folds)
    assert "30 steps left" in shown(planned(run, done=10))
    divided = shown(planned(simple_run(micro_batch=2)))
    assert "for 2 images" in divided and "4 times per step" in divided
    monkeypatch.setattr("vitrine.runs.plan.memory_of", lambda device: 2**10)
    assert planned(run, processes=GPU).device_bytes == 2**10
    assert "fewer images at a time" in shown(planned(run, processes=GPU))


def test_a_run_that_does_not_fit_on_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = simple_run(), RunFolder(tmp_path)
    require_disk_space(run.start.model, run.recipe.training, folder, has_best=True)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(CheckpointError, match="3 checkpoints") as caught:
        require_disk_space(run.start.model, run.recipe.training, folder, has_best=True)
    assert caught.value.advice == (TryOption("out", "to write elsewhere"),)


class Heard:
    def __init__(self) -> None:
        self.sizes: list[object] = []

    def notice(self, text: str, advice: Sequence[TryOption] = ()) -> None:
        assert "less accurately" in advice[0].purpose
        self.sizes.append(advice[0].value)


@pytest.mark.parametrize(
    ("pictures", "own", "suggested"),
    [(64, 224, [96]), (32, 224, [96]), (74, 224, [112]), (75, 224, []), (32, 112, []), (0, 224, [])],
)
def test_small_pictures_get_a_smaller_size_suggested_but_none_that_shows_too_little(
    pictures: int, own: int, suggested: list[int]
) -> None:
    heard = Heard()
    model = create_model("ViT-Ti/16", num_classes=10, image_size=own, depth=1)
    with listening(heard):  # type: ignore[arg-type]
        suggest_smaller_size((pictures, pictures), model.config)
    assert heard.sizes == suggested


def test_the_score_before_training_has_the_name_that_the_table_of_the_result_gives_it() -> None:
    one = Contender.of("head only", 0.5, num_images=10, seconds=1.0)
    score = ClosedFormScore(
        method="logistic", accuracy=0.5, interval=(0.2, 0.8), num_images=10, seconds=1.0, contenders=(one,)
    )
    first = next(map(str, closed_form_lines(score)))
    assert first.startswith("Head only: 50.0 %") and "(20.0 to 80.0) of 10" in first


def test_images_at_their_own_aspect_ratio_are_counted_by_their_patches() -> None:
    run = simple_run()
    squares = planned(run)
    model = run.start.model.config
    native = at_native_aspect(run.start.preprocess, model, 16)  # as many patches as the square has
    as_many = dataclasses.replace(run, start=dataclasses.replace(run.start, preprocess=native))
    assert planned(as_many).step_bytes == squares.step_bytes
    more = dataclasses.replace(native, max_patches=64)
    longer = planned(dataclasses.replace(run, start=dataclasses.replace(run.start, preprocess=more)))
    at_64_px = create_model("ViT", **{**dataclasses.asdict(model), "image_size": (64, 64)}).config  # type: ignore[arg-type]
    expected = cost_of(at_64_px)
    assert cost_of(model, patches=64).macs == expected.macs
    assert cost_of(model, patches=64).activations == expected.activations
    assert cost_of(model, patches=64).params == cost_of(model).params < expected.params
    assert longer.step_bytes > squares.step_bytes
    assert "at most 64 patches" in shown(longer)
    small, large = (
        fitting_micro_batch(
            find_recipe("demo"), model, processes=ALONE, shard=False, available=2e6, max_patches=most
        )
        for most in (64, 16)
    )
    assert 1 <= small < large


def test_operations_of_images_at_their_own_aspect_ratio_grow_with_their_patches() -> None:
    run = simple_run()
    native = at_native_aspect(run.start.preprocess, run.start.model.config, 64)
    start = dataclasses.replace(run.start, preprocess=native)
    flops = flops_per_image(start, run.recipe, num_images=32)
    assert flops > 3.5 * flops_per_image(
        run.start, run.recipe, num_images=32
    )  # 4 times the patches, and a head
