"""Schedule-free AdamW against its formulas and, where it is installed, against its authors' implementation."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn
from unit.training.simple import CONFIG, Memory, fresh_folder, small_model, small_task, weights
from unit.training.test_lamb import gradients

from vitrine.errors import ConfigError
from vitrine.runtime.run_folder import LAST
from vitrine.training.config import TrainingConfig
from vitrine.training.loop import train
from vitrine.training.saving import weights_of
from vitrine.training.schedule_free import ScheduleFree

RATES = (0.0, 0.05, 0.1, 0.1, 0.1, 0.1)  # a warm-up that begins at zero, as the loop's does
SCHEDULE_FREE = TrainingConfig(
    total_steps=12, batch_size=16, lr=3e-3, warmup_steps=4, weight_decay=0.1, log_every=1, precision="fp32",
    optimizer="schedule-free", decay="constant",
)  # fmt: skip


def optimizer_of(parameter: nn.Parameter) -> ScheduleFree:
    group = {"params": [parameter], "names": ["weight"], "lr": 0.1, "weight_decay": 0.05}
    return ScheduleFree([group], betas=(0.9, 0.99))


def test_steps_equal_the_three_sequences_written_out() -> None:
    parameter = nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3))
    optimizer = optimizer_of(parameter)
    z = x = y = parameter.detach().double()
    square, squares = torch.zeros(4, 3).double(), 0.0
    for step, (gradient, rate) in enumerate(zip(gradients(6), RATES, strict=True), start=1):
        parameter.grad, optimizer.param_groups[0]["lr"] = gradient.clone(), rate
        optimizer.step()
        square = 0.99 * square + 0.01 * gradient.double() ** 2
        z = z - rate * (gradient / ((square / (1 - 0.99**step)).sqrt() + 1e-8) + 0.05 * y)
        squares += rate**2
        share = rate**2 / squares if squares else 0.0
        x = (1 - share) * x + share * z
        y = 0.1 * z + 0.9 * x
    torch.testing.assert_close(parameter.detach().double(), y, rtol=1e-5, atol=1e-6)
    [(name, average)] = optimizer.averages()
    assert name == "weight"
    torch.testing.assert_close(average.double(), x, rtol=1e-5, atol=1e-6)


def test_steps_equal_those_of_the_authors_implementation() -> None:
    if importlib.util.find_spec("schedulefree") is None:
        pytest.skip("schedulefree is not installed")
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3)) for _ in range(2))
    optimizer = optimizer_of(ours)
    other = importlib.import_module("schedulefree").AdamWScheduleFree(
        [theirs], lr=0.1, betas=(0.9, 0.99), weight_decay=0.05, foreach=False
    )
    other.train()
    for gradient in gradients(6):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        other.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    other.eval()
    [(_, average)] = optimizer.averages()
    torch.testing.assert_close(average, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_a_gradient_with_infinity_changes_nothing() -> None:
    parameter = nn.Parameter(torch.ones(4, 3))
    optimizer = optimizer_of(parameter)
    parameter.grad = torch.full((4, 3), torch.inf)
    optimizer.found_inf = torch.tensor(1.0)  # type: ignore[attr-defined]
    optimizer.step()
    state = optimizer.state[parameter]
    assert torch.equal(parameter, torch.ones(4, 3)) and torch.equal(state["z"], torch.ones(4, 3))
    assert not state["exp_avg_sq"].any() and not state["step"] and not state["squares"]


def test_a_run_evaluates_and_saves_the_average_and_trains_between_it_and_z(tmp_path: Path) -> None:
    model, memory = small_model(), Memory()
    train(model, small_task(), config=SCHEDULE_FREE, folder=fresh_folder(tmp_path), sinks=[memory])
    saved = weights_of(fresh_folder(tmp_path) / LAST)
    trained = weights(model)
    assert saved.keys() == trained.keys()
    assert any(not torch.equal(saved[name], trained[name]) for name in trained)
    # The small task's "accuracy" is the sum of the evaluated weights.
    [score] = [record["val_accuracy"] for record in memory.records if "val_accuracy" in record]
    assert score == pytest.approx(float(sum(value.double().sum() for value in saved.values())))
    assert memory.losses[-1] < memory.losses[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"decay": "cosine"}, "decay must be constant"), ({"average_decay": 0.9}, "average_decay must be null")],
)
def test_a_schedule_or_a_second_average_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainingConfig(**{"optimizer": "schedule-free", "decay": "constant", **changes})  # type: ignore[arg-type]


def test_every_other_optimizer_keeps_its_averages_as_asked() -> None:
    assert not CONFIG.averages and SCHEDULE_FREE.averages and not SCHEDULE_FREE.evaluates_twice
