"""Phases of a run: which steps they cover, the gradient of the hardest images, resuming and recording."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from unit.training.simple import CONFIG, Memory, assert_equal, fresh_folder, small_model, small_task, weights

from vitrine.errors import ConfigError
from vitrine.models.dropout import image_keys, number_random_layers, randomness_of
from vitrine.runtime.processes import Processes
from vitrine.runtime.run_folder import LAST
from vitrine.training import graphs
from vitrine.training import loop as loop_module
from vitrine.training.loop import train
from vitrine.training.phases import Phase, phase_at, require_phases, steps_of
from vitrine.training.step import StepState, forward_backward, hardest_of
from vitrine.training.task import Task

PHASES = (Phase(until=0.3, patches=0.5), Phase(until=0.65), Phase(hardest=0.5))


def test_every_step_has_one_phase_and_the_counts_agree_with_it() -> None:
    for total in (1, 7, 20, 97):
        counts = dict(steps_of(PHASES, total_steps=total))
        own = [phase_at(step, PHASES, total_steps=total) for step in range(total)]
        assert {phase: own.count(phase) for phase in PHASES} == counts
        assert own == sorted(own, key=PHASES.index)
    assert phase_at(5, (), total_steps=10) == Phase()


@pytest.mark.parametrize(
    ("phases", "reason"),
    [
        ((Phase(until=0.5), Phase(until=0.5), Phase()), "in order"),
        ((Phase(until=0.5),), "until 1"),
        (tuple(Phase(until=(1 + n) / 5, hardest=0.5) for n in range(5)), "at most 8"),
    ],
)
def test_phases_that_do_not_cover_a_run_are_refused(phases: tuple[Phase, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        require_phases(phases)


@pytest.mark.parametrize("options", [{"until": 0}, {"patches": 1.5}, {"hardest": 0}, {"size": 0}])
def test_a_phase_out_of_range_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Phase(**options)  # type: ignore[arg-type]


def losses_of(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    losses = nn.functional.cross_entropy(module(parts[0]), parts[1], reduction="none")
    return losses, {"count": losses.new_tensor(len(losses))}


@pytest.mark.parametrize("micro_batch", [12, 5])
def test_selective_backward_gives_the_gradient_of_the_largest_losses_alone(micro_batch: int) -> None:
    """Dropout and stochastic depth draw by image: the second pass on an image equals the first."""
    model = small_model(dropout=0.2, stochastic_depth=0.3, pooling="average").double().train()
    nn.init.normal_(model.head.weight)  # type: ignore[union-attr]
    number_random_layers(model)
    keys = image_keys(3, first=0, count=12, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(12, 3, 32, 32, generator=generator, dtype=torch.float64)
    parts = (images, torch.arange(12) % 10, keys)

    with randomness_of(keys):
        expected, _ = losses_of(model, parts[:2])
    expected.topk(3).values.mean().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)

    state = StepState(micro_batch=micro_batch, bad=torch.zeros(()), hardest=0.25)
    loss, sums = forward_backward(
        model, parts, loss_of=losses_of, state=state, autocast=nullcontext, processes=Processes()
    )
    # The choice is made in fp32, the gradient in fp64; losses that are summed are those of all images.
    assert float(loss) == pytest.approx(float(expected.sum().detach()), rel=1e-6)
    assert float(sums["count"]) == 12
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-9, atol=1e-12)


def test_at_least_one_image_has_a_backward_pass() -> None:
    chosen = hardest_of((torch.arange(4), torch.arange(4)), torch.tensor([0.1, 3.0, 2.0, 0.0]), share=0.01)
    assert [part.tolist() for part in chosen] == [[1], [1]]


def phased_task(config: object = CONFIG) -> Task:
    return dataclasses.replace(small_task(CONFIG), phases=(Phase(until=0.5), Phase(hardest=0.5)))


def test_a_run_resumed_in_a_phase_ends_with_the_same_weights(tmp_path: Path) -> None:
    model = small_model(dropout=0.1)
    train(model, phased_task(), config=CONFIG, folder=fresh_folder(tmp_path, "whole"))
    first, folder = small_model(dropout=0.1), fresh_folder(tmp_path, "parts")
    task = phased_task()

    def stopping(start: int, stop: int):  # type: ignore[no-untyped-def]
        for number, batch in enumerate(task.batches(start, stop)):
            if number == 13:
                raise KeyboardInterrupt
            yield batch

    with pytest.raises(KeyboardInterrupt):
        train(first, dataclasses.replace(task, batches=stopping), config=CONFIG, folder=folder)
    second = small_model(dropout=0.1)
    train(second, phased_task(), config=CONFIG, folder=folder, resume_from=folder / LAST)
    assert_equal(weights(second), weights(model))


def test_steps_are_recorded_anew_for_every_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU a step that is taken again stands for a replay; the losses equal those of launched steps."""
    recordings = []

    def taken_again(step):  # type: ignore[no-untyped-def]
        recordings.append(step)
        return step

    launched = Memory()
    train(small_model(), phased_task(), config=CONFIG, folder=fresh_folder(tmp_path, "a"), sinks=[launched])
    monkeypatch.setattr(loop_module, "can_record", lambda device, *, world_size: True)
    monkeypatch.setattr(graphs, "recorded", taken_again)
    replayed = Memory()
    train(
        small_model(), phased_task(), config=dataclasses.replace(CONFIG, graphs=True),
        folder=fresh_folder(tmp_path, "b"), sinks=[replayed],
    )  # fmt: skip
    assert len(recordings) == 2
    # A learning rate in a tensor has 24 bits.
    assert replayed.losses == pytest.approx(launched.losses, rel=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_recorded_phases_train_as_launched_ones_do(tmp_path: Path, compiled: bool) -> None:
    config = dataclasses.replace(CONFIG, compile=compiled, micro_batch=16)
    processes = Processes(device=torch.device("cuda"))
    losses = []
    for uses in (False, True):
        task = dataclasses.replace(
            small_task(config, processes=processes), phases=(Phase(until=0.5), Phase(hardest=0.5))
        )
        memory = Memory()
        train(
            small_model(dropout=0.2), task, config=dataclasses.replace(config, graphs=uses), sinks=[memory],
            folder=fresh_folder(tmp_path, str(uses)), processes=processes,
        )  # fmt: skip
        losses.append(memory.losses)
    # Sums by atomics come in any order, and a learning rate in a tensor has 24 bits.
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
