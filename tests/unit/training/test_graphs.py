"""Recorded steps: on the CPU a step that is taken again stands for a replay; on a GPU the graphs themselves."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from unit.training.simple import CONFIG, Memory, fresh_folder, small_model, small_task, weights

from vitrine.errors import TrainingError
from vitrine.runtime.processes import Processes
from vitrine.runtime.run_folder import STOPPED
from vitrine.training import graphs
from vitrine.training import loop as loop_module
from vitrine.training.config import TrainingConfig
from vitrine.training.graphs import WARM_UP_STEPS, ReplayedStep, Taken, put_rates_in_tensors
from vitrine.training.loop import Run, train
from vitrine.training.optimizer import make_optimizer
from vitrine.training.saving import numbers_of, weights_of
from vitrine.training.step import Parts, StepState, out_of_memory
from vitrine.training.stopping import NoMemoryError
from vitrine.training.task import Task

Changed = dataclasses.replace
OPTIMIZERS = ("adamw", "sgd", "muon")


def taken_again(step: Callable[[], Taken]) -> Callable[[], Taken]:
    """Stand for a recording: results are written to the same tensors at every replay, as a graph does."""
    kept: list[Taken] = []

    def replay() -> Taken:
        loss, sums, norm = step()
        if not kept:
            kept.append((loss.clone(), {name: value.clone() for name, value in sums.items()}, norm.clone()))
        own_loss, own_sums, own_norm = kept[0]
        own_loss.copy_(loss)
        own_norm.copy_(norm)
        for name, value in sums.items():
            own_sums[name].copy_(value)
        return kept[0]

    return replay


def run(folder: Path, config: TrainingConfig, *, task: Task | None = None) -> tuple[nn.Module, Memory]:
    model, memory = small_model(dropout=0.1), Memory()
    train(model, task or small_task(config), config=config, folder=fresh_folder(folder), sinks=[memory])
    return model, memory


@pytest.fixture
def recording_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "can_record", lambda device, *, world_size: True)
    monkeypatch.setattr(graphs, "recorded", taken_again)


@pytest.mark.usefixtures("recording_here")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_replayed_steps_train_as_launched_ones_do(tmp_path: Path, optimizer: str) -> None:
    config = Changed(CONFIG, total_steps=10, optimizer=optimizer, average_decay=0.9, log_every=3)
    model, launched = run(tmp_path / "a", config)
    other, replayed = run(tmp_path / "b", Changed(config, graphs=True))
    # A learning rate in a tensor has 24 bits.
    assert replayed.losses == pytest.approx(launched.losses, rel=1e-5)
    norms = [
        [record["gradient_norm"] for record in memory.records if "loss" in record]
        for memory in (launched, replayed)
    ]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    for name, value in weights(other).items():
        # Adam makes a step of the rounding in a gradient that should be 0, such as that of the keys' bias.
        torch.testing.assert_close(value, weights(model)[name], rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("recording_here")
def test_a_replayed_step_that_is_not_finite_stops_at_that_step_with_the_weights_before(
    tmp_path: Path,
) -> None:
    config = Changed(CONFIG, total_steps=12, log_every=4, graphs=True)
    task, bad_step = small_task(config), 6
    batches = iter(range(12))

    def spoilt(batch: object) -> Parts:
        images, labels = task.prepare(batch)  # type: ignore[arg-type]
        return (images * float("nan") if next(batches) == bad_step else images), labels

    with pytest.raises(TrainingError, match=f"step {bad_step + 1} is NaN or infinity"):
        run(tmp_path, config, task=Changed(task, prepare=spoilt))
    saved = fresh_folder(tmp_path) / STOPPED
    assert numbers_of(saved)["step"] == bad_step
    assert all(value.isfinite().all() for value in weights_of(saved).values())


def test_the_first_steps_are_launched_and_the_batch_is_copied_to_where_the_recorded_one_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "recorded", taken_again)
    seen: list[int] = []

    def take(parts: Parts) -> Taken:
        seen.append(parts[0].data_ptr())
        return parts[0].sum(), {"sum": parts[0].sum()}, parts[0].norm()

    step = ReplayedStep(take, state=StepState(micro_batch=2, bad=torch.zeros(())))
    given = [torch.full((2,), float(number)) for number in range(6)]
    losses = [float(step((part,))[0]) for part in given]
    assert losses == [2.0 * number for number in range(6)]
    assert seen[:WARM_UP_STEPS] == [part.data_ptr() for part in given[:WARM_UP_STEPS]]
    assert len(set(seen[WARM_UP_STEPS:])) == 1


def test_what_cannot_be_recorded_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(step: Callable[[], Taken]) -> Callable[[], Taken]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(graphs, "recorded", refuse)
    step = ReplayedStep(
        lambda parts: (parts[0], {}, parts[0]), state=StepState(micro_batch=1, bad=torch.zeros(()))
    )
    part = torch.ones(())
    for _ in range(WARM_UP_STEPS):
        step((part,))
    with pytest.raises(TrainingError, match=r"capturing\)"):
        step((part,))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_learning_rate_in_a_tensor_moves_weights_as_a_number_does(name: str) -> None:
    config = Changed(CONFIG, optimizer=name)
    found: list[dict[str, Tensor]] = []
    for is_tensor in (False, True):
        model = small_model()
        optimizer = make_optimizer(model, config)
        if is_tensor:
            put_rates_in_tensors(optimizer, device=torch.device("cpu"))
        for rate in (1e-2, 1e-3):
            for group in optimizer.param_groups:
                group["lr"] = group["lr"].fill_(rate) if is_tensor else rate
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = torch.full_like(parameter, 0.1 * (number % 3 - 1))
            optimizer.step()
        found.append(weights(model))
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-5, atol=1e-6)


def test_graphs_change_nothing_without_cuda() -> None:
    config = Changed(CONFIG, graphs=True)
    run = Run(
        small_model(), small_task(config), config=config, folder=Path(), sinks=(), processes=Processes(),
        shard=False,
    )  # fmt: skip
    assert not run.uses_graphs
    assert all(isinstance(group["lr"], float) for group in run.state.optimizer.param_groups)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_graph_gives_the_losses_and_weights_of_launched_kernels(
    tmp_path: Path, optimizer: str, compiled: bool
) -> None:
    config = Changed(
        CONFIG, total_steps=12, optimizer=optimizer, precision="fp32", compile=compiled, average_decay=0.9,
        evaluate_every=5, micro_batch=8,
    )  # fmt: skip
    processes = Processes(device=torch.device("cuda"))
    found = []
    for uses in (False, True):
        # Random numbers matter: with other ones the losses would differ in the second digit.
        model, memory = small_model(dropout=0.2, stochastic_depth=0.3), Memory()
        changed = Changed(config, graphs=uses)
        train(
            model, small_task(changed, processes=processes), config=changed, sinks=[memory], processes=processes,
            folder=fresh_folder(tmp_path, str(uses)),
        )  # fmt: skip
        found.append((memory.losses, weights(model)))
    (launched, before), (replayed, after) = found
    # Sums by atomics come in any order, and a learning rate in a tensor has 24 bits.
    assert replayed == pytest.approx(launched, rel=1e-3)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("is_reported_by_the_recording", [False, True])
def test_memory_that_runs_out_while_recording_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch, is_reported_by_the_recording: bool
) -> None:
    no_memory = out_of_memory(StepState(micro_batch=1, bad=torch.zeros(())))

    def fail(step: Callable[[], Taken]) -> Callable[[], Taken]:
        try:
            raise no_memory
        finally:
            if is_reported_by_the_recording:  # as torch does at the end of a recording that failed
                raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(graphs, "recorded", fail)
    step = ReplayedStep(
        lambda parts: (parts[0], {}, parts[0]), state=StepState(micro_batch=1, bad=torch.zeros(()))
    )
    for _ in range(WARM_UP_STEPS):
        step((torch.ones(()),))
    with pytest.raises(NoMemoryError) as caught:
        step((torch.ones(()),))
    assert caught.value is no_memory
