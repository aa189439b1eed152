"""What the training commands reckon before a run."""

from pathlib import Path

import pytest

from vitrine.commands.runs.run_plan import demand_of
from vitrine.commands.runs.training_run import Setting, fitting_micro_batch
from vitrine.data.preprocess import Preprocess
from vitrine.evaluation.bootstrap import wilson_interval
from vitrine.models import create_model
from vitrine.recipes import find_recipe


def setting(**options: object) -> Setting:
    model = create_model("ViT-Ti/16", num_classes=10, image_size=32, depth=12, **options)  # type: ignore[arg-type]
    return Setting(
        model=model, preprocess=Preprocess(size=(32, 32)), splits={}, recipe=find_recipe("demo"), folder=Path("run"),
        verb="pretrain", data="", device="cpu", workers=0,
    )  # fmt: skip


def test_the_micro_batch_of_a_sharded_run_is_the_largest_half_that_is_predicted_to_fit() -> None:
    run = setting()
    assert run.recipe.training.batch_size == 128
    for size in (64, 32, 16, 1):
        free = demand_of(run, device="cuda").memory(micro_batch=size, shards=2).total
        assert fitting_micro_batch(run, world_size=2, free=free) == size
        assert fitting_micro_batch(run, world_size=2, free=free - 1) == max(size // 2, 1)
    assert fitting_micro_batch(run, world_size=2, free=1e15) == 64


def test_recomputed_activations_let_more_images_fit() -> None:
    free = demand_of(setting(), device="cuda").memory(micro_batch=8, shards=2).total
    frugal = setting(activation_checkpointing=True)
    assert fitting_micro_batch(frugal, world_size=2, free=free) > 8


@pytest.mark.parametrize(
    ("share", "count", "interval"),
    [(0.5, 100, (0.4038, 0.5962)), (1.0, 10, (0.7225, 1.0)), (0.0, 10, (0.0, 0.2775))],
)
def test_the_interval_is_wilsons(share: float, count: int, interval: tuple[float, float]) -> None:
    assert wilson_interval(share, count) == pytest.approx(interval, abs=1e-4)  # from published tables
