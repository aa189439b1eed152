"""Phases of a run, applied to its model: sizes, patches, cost, and what is refused."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from unit.runs.simple import simple_run

import vitrine
from vitrine.cli.views.training_plan import phase_lines
from vitrine.errors import ConfigError
from vitrine.models import ViT, create_model
from vitrine.models.cost import cost_of
from vitrine.models.dropout import image_keys, randomness_of
from vitrine.models.patch_dropping import drop_patches
from vitrine.recipes import find_recipe
from vitrine.recipes.recipe_values import from_yaml, to_yaml, with_settings
from vitrine.runs.phases import cost_of_phase, mean_cost, resized, with_phases
from vitrine.training.phases import Phase

PHASES = (Phase(until=0.25, size=16), Phase(until=0.5, patches=0.5), Phase(hardest=0.5))
RECIPE = dataclasses.replace(find_recipe("demo"), phases=PHASES)


def vit(**options: Any) -> ViT:
    given = {"patch_size": 8, "width": 16, "depth": 2, "num_heads": 2, "mlp_width": 16, "pooling": "average"}
    model = create_model("ViT", image_size=32, num_classes=10, **{**given, **options})
    assert isinstance(model, ViT)
    return model


def test_the_batches_of_a_run_have_the_size_and_patches_of_their_phase() -> None:
    run = simple_run(RECIPE)
    task, model = run.task(), run.start.model.train()
    assert isinstance(model, ViT)
    seen = []
    for batch in task.batches(0, 40):
        images = task.prepare(batch)[0]
        seen.append((images.shape[-1], model.num_kept))
        assert images.abs().max() <= 1
    assert seen == [(16, None)] * 10 + [(32, 8)] * 10 + [(32, None)] * 20


def test_a_kept_patch_keeps_its_position_and_other_patches_are_kept_for_every_image_and_step() -> None:
    tokens = torch.arange(10.0).view(1, 10, 1).expand(6, 10, 3).clone()
    draws = []
    for first in (0, 6):
        with randomness_of(image_keys(0, first=first, count=6, device=tokens.device)):
            kept = drop_patches(tokens, num_leading=2, num_kept=4)
        assert kept.shape == (6, 6, 3) and torch.equal(kept[:, :2], tokens[:, :2])
        draws += [frozenset(row.tolist()) for row in kept[:, 2:, 0]]
        assert all(len(draw) == 4 and draw <= set(range(2, 10)) for draw in draws)
    assert len(set(draws)) > 6


def test_the_draw_of_an_image_does_not_depend_on_its_batch() -> None:
    tokens = torch.arange(20.0).view(1, 20, 1).expand(5, 20, 1)
    keys = image_keys(1, first=0, count=5, device=tokens.device)
    with randomness_of(keys):
        together = drop_patches(tokens, num_leading=0, num_kept=7)
    with randomness_of(keys[3:]):
        alone = drop_patches(tokens[3:], num_leading=0, num_kept=7)
    assert torch.equal(together[3:], alone)


def test_every_patch_is_kept_equally_often() -> None:
    tokens = torch.arange(16.0).view(1, 16, 1).expand(4000, 16, 1)
    with randomness_of(image_keys(0, first=0, count=4000, device=tokens.device)):
        kept = drop_patches(tokens, num_leading=0, num_kept=4)
    counts = torch.bincount(kept.flatten().long(), minlength=16)
    # Binomial with mean 1,000 and deviation 27.4: five deviations.
    assert (counts - 1000).abs().max() < 137


def test_patches_are_dropped_in_training_only() -> None:
    model, images = vit(), torch.randn(2, 3, 32, 32)
    torch.nn.init.normal_(model.head.weight)  # type: ignore[union-attr]
    whole = model.eval()(images)
    model.num_kept = 4
    assert torch.equal(model(images), whole)
    assert not torch.allclose(model.train()(images), whole)
    model.num_kept = 16
    # The same patches in another order: sums differ in the last bits.
    torch.testing.assert_close(model(images), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"positions": "relative", "position_placement": "every_layer"}, "before the first block"),
        ({"position_placement": "every_layer"}, "before the first block"),
        ({"rotary": "dinov3", "num_heads": 1}, "before the first block"),
        ({"patch_size": 16, "image_size": 48}, None),
        ({"patch_size": 32}, "nearest that fit"),
    ],
)
def test_models_that_need_every_token_or_another_size_are_refused(
    options: dict[str, Any], reason: str | None
) -> None:
    size = {"image_size": 32, **options}
    model = create_model(
        "ViT", num_classes=10, **{"width": 16, "depth": 2, "num_heads": 2, "mlp_width": 16, "patch_size": 8, **size}
    )  # fmt: skip
    if reason is None:
        with_phases(lambda batch: (), model, RECIPE)
        return
    with pytest.raises(ConfigError, match=reason):
        with_phases(lambda batch: (), model, RECIPE)


def test_a_resnet_has_no_phases() -> None:
    with pytest.raises(ConfigError, match="need a ViT"):
        with_phases(lambda batch: (), create_model("BiT-R50x1", image_size=32, num_classes=3), RECIPE)


@pytest.mark.parametrize(
    "settings",
    [["max_patches=64"], ["views.patch_sizes=[8, 16]"], ["objective=masked-patches", "augment.until=1.0"]],
)
def test_settings_that_phases_do_not_support_are_refused(settings: list[str]) -> None:
    with pytest.raises(ConfigError):
        with_settings(RECIPE, settings)


def test_phases_survive_yaml_and_can_be_set_on_the_command_line() -> None:
    assert from_yaml(to_yaml(RECIPE)).phases == PHASES
    text = "phases=[{until: 0.25, size: 16}, {until: 0.5, patches: 0.5}, {hardest: 0.5}]"
    assert with_settings(find_recipe("demo"), [text]).phases == PHASES


def test_the_cost_of_a_phase_is_that_of_its_tokens_and_passes() -> None:
    config = vit().config
    small = dataclasses.replace(config, image_size=(16, 16))
    ratio = cost_of(small).macs / cost_of(config).macs
    costs = [cost_of_phase(config, phase) for phase in PHASES]
    assert costs == pytest.approx([ratio, 0.5, 1 / 3 + 0.5])
    recipe = dataclasses.replace(RECIPE, training=dataclasses.replace(RECIPE.training, total_steps=100))
    assert mean_cost(config, recipe, done=0) == pytest.approx((costs[0] + costs[1] + 2 * costs[2]) / 4)
    assert mean_cost(config, recipe, done=60) == pytest.approx(costs[2])


def test_a_smaller_image_is_antialiased_and_keeps_its_range() -> None:
    stripes = torch.tensor([0, 255], dtype=torch.uint8).repeat(1, 3, 32, 16)
    smaller = resized(stripes, 16)
    # A filter of two pixels of each shade leaves grey; without antialiasing half of the columns would be lost.
    assert smaller[..., 1:-1].sub(127.5).abs().max() < 1 and smaller.shape == (1, 3, 16, 16)
    assert resized(stripes, 32) is stripes


def losses_of(folder: Path, *settings: str, device: str) -> list[float]:
    vitrine.pretrain(
        "generated:shapes?count=64&size=32&label=shape", recipe="demo", steps=24, batch_size=16, hold_out=0,
        out=folder, device=device, workers=0, precision="fp32", log_every=1,
        set=["phases=[{until: 0.3, size: 16}, {until: 0.6, patches: 0.5}, {hardest: 0.5}]", *settings],
    )  # fmt: skip
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]


def test_a_run_of_three_phases_trains_and_repeats_itself(tmp_path: Path) -> None:
    losses = losses_of(tmp_path / "a", device="cpu")
    assert len(losses) == 24 and losses == losses_of(tmp_path / "b", device="cpu")
    assert losses != losses_of(tmp_path / "c", "phases=[]", device="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", ["false", "true"])
def test_recorded_steps_of_all_phases_have_the_losses_of_launched_ones(tmp_path: Path, compiled: str) -> None:
    launched, recorded = (
        losses_of(
            tmp_path / graphs, f"training.graphs={graphs}", f"training.compile={compiled}", device="cuda"
        )
        for graphs in ("false", "true")
    )
    # Sums by atomics come in any order, and a learning rate in a tensor has 24 bits.
    assert recorded == pytest.approx(launched, rel=1e-3)


def test_the_plan_names_every_phase_with_its_steps() -> None:
    lines = list(phase_lines(SimpleNamespace(phases=[(phase, 10, 0.5) for phase in PHASES])))  # type: ignore[arg-type]
    assert len(lines) == 3
    for text, word in zip(map(str, lines), ("16 px", "50% of the patches", "hardest 50%"), strict=True):
        assert word in text and "10 steps" in text
