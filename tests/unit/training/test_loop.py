"""The one loop: exact, resumable, careful."""

import dataclasses
import functools
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from unit.training.simple import (
    CONFIG,
    Memory,
    Said,
    assert_equal,
    fresh_folder,
    small_model,
    small_task,
    weights,
)

from vitrine.data.loading.loader import Batch
from vitrine.errors import CheckpointError, DataError, MissingDataError, TryOption, TryVerb
from vitrine.models import create_model
from vitrine.runtime import files
from vitrine.runtime.progress import listening
from vitrine.runtime.run_folder import BEST, LAST, STOPPED, RunFolder
from vitrine.training import checkpoints as checkpoints_module
from vitrine.training.config import TrainingConfig
from vitrine.training.loop import train
from vitrine.training.optimizer import learning_rate
from vitrine.training.saving import newest_state, numbers_of, weights_of
from vitrine.training.state import TrainingState
from vitrine.training.stopping import SIGNALS, NoMemoryError, NotFiniteError, StoppedError
from vitrine.training.task import Task

Changed = dataclasses.replace


def run(tmp_path: Path, config: TrainingConfig = CONFIG, **options: object) -> tuple[nn.Module, Memory]:
    model, memory = small_model(**options), Memory()
    train(model, small_task(config), config=config, folder=fresh_folder(tmp_path), sinks=[memory])
    return model, memory


def test_the_first_twenty_losses_equal_those_of_a_plain_pytorch_loop(tmp_path: Path) -> None:
    _, memory = run(tmp_path)
    model, task = small_model(), small_task()
    decayed = [p for n, p in model.named_parameters() if n.endswith(".weight") and p.ndim > 1]
    others = [p for n, p in model.named_parameters() if not (n.endswith(".weight") and p.ndim > 1)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    )
    losses = []
    for step, batch in enumerate(task.batches(0, 20)):
        images, labels = task.prepare(batch)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, step / 4) * 0.5 * (1 + math.cos(math.pi * max(0, step - 4) / 16))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    # Adam's fused and plain kernels round differently; after twenty steps that is still in the sixth digit.
    assert memory.losses == pytest.approx(losses, rel=1e-5)


def test_logged_learning_rates_equal_the_schedule(tmp_path: Path) -> None:
    _, memory = run(tmp_path)
    rates = [record["lr"] for record in memory.records if "lr" in record]
    assert rates == [learning_rate(s, peak=1e-3, warmup_steps=4, total_steps=20) for s in range(20)]


@pytest.mark.parametrize("micro_batch", [1, 5, 8])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": 0.2},
        {"stochastic_depth": 0.5},
        {"dropout": 0.2, "stochastic_depth": 0.5, "activation_checkpointing": True},
    ],
    ids=["plain", "dropout", "stochastic depth", "computed again"],
)
def test_micro_batches_do_not_change_the_result(
    tmp_path: Path, micro_batch: int, options: dict[str, object]
) -> None:
    config = Changed(CONFIG, total_steps=6, average_decay=0.9)
    # What is computed again in the backward pass must draw as in the forward pass.
    _, whole = run(tmp_path / "a", config, **{**options, "activation_checkpointing": False})
    _, pieces = run(tmp_path / "b", Changed(config, micro_batch=micro_batch), **options)
    assert pieces.losses == pytest.approx(whole.losses, rel=1e-5)  # sums in another order


def test_out_of_memory_halves_the_micro_batch_and_goes_on_with_the_same_result(tmp_path: Path) -> None:
    config = Changed(CONFIG, total_steps=4)
    _, expected = run(tmp_path / "a", config)
    task, sizes = small_task(config), []

    def cramped(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        if len(parts[0]) > 4:
            raise torch.OutOfMemoryError("no room")
        sizes.append(len(parts[0]))
        return task.loss_of(module, parts)

    memory = Memory()
    train(
        small_model(),
        Changed(task, loss_of=cramped),
        config=config,
        folder=fresh_folder(tmp_path, "b"),
        sinks=[memory],
    )
    assert set(sizes) == {4}
    assert memory.losses == pytest.approx(expected.losses, rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adamw", "average_decay": 0.9},
        {"optimizer": "sgd", "lr": 0.05},
        {"optimizer": "muon"},
        {"optimizer": "schedule-free", "decay": "constant"},
        {"decay": "wsd", "cooldown": 0.5},
        {"log_every": 7},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    config = Changed(CONFIG, **changes)
    options = {"dropout": 0.1, "stochastic_depth": 0.1}
    whole, expected = run(tmp_path / "whole", config, **options)
    task, memory = small_task(config), Memory()

    def until(start: int, stop: int) -> Iterator[object]:
        for step, batch in zip(range(start, stop), task.batches(start, stop), strict=True):
            if step == 13:
                raise ConnectionError("the power goes")
            yield batch

    folder = fresh_folder(tmp_path, "broken")
    with pytest.raises(ConnectionError):
        train(
            small_model(**options), Changed(task, batches=until), config=config, folder=folder, sinks=[memory]
        )
    kept = [r for r in memory.records if r["step"] <= 10]
    assert numbers_of(folder / LAST)["step"] == 10
    again, rest = small_model(**options), Memory()
    train(again, task, config=config, folder=folder, sinks=[rest], resume_from=folder / LAST)
    assert_equal(weights(whole), weights(again))
    both = [r["loss"] for r in kept + rest.records if "loss" in r]
    assert both == expected.losses
    if config.averages:
        assert_equal(weights_of(folder / LAST), weights_of(fresh_folder(tmp_path / "whole") / LAST))


def test_a_loss_that_is_not_finite_stops_at_that_step_and_keeps_the_last_good_weights(tmp_path: Path) -> None:
    config = Changed(CONFIG, log_every=4)
    task, seen = small_task(config), []

    def spoilt(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append({name: value.clone() for name, value in module.state_dict().items()})
        losses, stats = task.loss_of(module, parts)
        return losses * (float("nan") if len(seen) == 6 else 1.0), stats

    folder = fresh_folder(tmp_path)
    with pytest.raises(NotFiniteError, match=r"picture-5.*lower learning rate") as caught:
        train(small_model(), Changed(task, loss_of=spoilt), config=config, folder=folder)
    assert (caught.value.exit_code, caught.value.step) == (3, 6)
    assert_equal(weights_of(folder / STOPPED), seen[5])  # as they were before the sixth step
    assert numbers_of(folder / STOPPED)["step"] == 5
    # The last checkpoint is of the fifth step: no learning rate helps there.
    assert caught.value.advice == () and "start a new run" in caught.value.problem


def test_a_run_whose_rate_was_too_high_goes_on_from_its_last_checkpoint_with_a_lower_one(
    tmp_path: Path,
) -> None:
    """At the step that was not finite the same weights would fail on the same batch at any rate."""
    wild = Changed(CONFIG, lr=1e30, warmup_steps=0, optimizer="sgd", clip_norm=None, checkpoint_every=10)
    folder, calm, memory = fresh_folder(tmp_path), Changed(wild, lr=1e-3), Memory()
    with pytest.raises(NotFiniteError) as caught:
        train(small_model(), small_task(wild), config=wild, folder=folder)
    lower = {"set": "training.lr=1e+29"}
    assert caught.value.advice == (
        TryVerb("resume", (str(folder.parent),), "to continue from step 0", lower),
    )
    assert numbers_of(folder / STOPPED)["step"] > 0
    train(
        small_model(), small_task(calm), config=calm, folder=folder, sinks=[memory], resume_from=folder / LAST
    )
    _, expected = run(tmp_path / "calm", calm)
    assert memory.losses == expected.losses
    assert newest_state(folder / STOPPED) is None  # what was got over is not kept


def test_the_best_that_is_told_is_what_is_kept_where_a_run_goes_on_otherwise_than_before(
    tmp_path: Path,
) -> None:
    config = Changed(CONFIG, total_steps=10, evaluate_every=2, checkpoint_every=4)
    folder, results, seen = fresh_folder(tmp_path), iter([0.5, 0.4, 0.9, *[0.1] * 4]), []
    task = Changed(small_task(config), evaluate=lambda model: {"accuracy": next(results)})

    def spoilt(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append(1)
        losses, stats = task.loss_of(module, parts)
        return losses * (float("nan") if len(seen) == 7 else 1.0), stats

    with pytest.raises(NotFiniteError, match="to continue from step 4"):
        train(small_model(), Changed(task, loss_of=spoilt), config=config, folder=folder)
    calm = Changed(config, lr=1e-4)
    outcome = train(small_model(), task, config=calm, folder=folder, resume_from=folder / LAST)
    assert (outcome.best, outcome.best_step) == (0.9, 6)
    assert numbers_of(folder / BEST)["best_step"] == 6


@pytest.mark.parametrize("changes", [{"checkpoint_every": 7}, {"patience": 1, "evaluate_every": 3}])
def test_steps_after_one_that_is_not_finite_are_never_saved_as_done(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    """Whatever comes before the next record: a checkpoint, or the end of patience."""
    config, seen = Changed(CONFIG, log_every=20, **changes), []
    task = Changed(small_task(config), evaluate=lambda model: {"accuracy": 0.5})

    def spoilt(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append(1)
        losses, stats = task.loss_of(module, parts)
        return losses * (float("nan") if len(seen) == 5 else 1.0), stats

    folder = fresh_folder(tmp_path)
    with pytest.raises(NotFiniteError, match="NaN or infinity") as caught:
        train(small_model(), Changed(task, loss_of=spoilt), config=config, folder=folder)
    assert caught.value.step == 5
    assert numbers_of(folder / STOPPED)["step"] == 4
    assert numbers_of(folder / LAST)["step"] == 0


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_only_a_rough_precision_is_advised_against(tmp_path: Path, precision: str) -> None:
    task = small_task()

    def spoilt(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        losses, stats = task.loss_of(module, parts)
        return losses * float("nan"), stats

    with pytest.raises(NotFiniteError) as caught:
        train(
            small_model(),
            Changed(task, loss_of=spoilt),
            config=Changed(CONFIG, precision=precision),
            folder=fresh_folder(tmp_path),
        )
    advised = any(
        advice == TryOption("precision", "to compute exactly", "fp32") for advice in caught.value.advice
    )
    assert advised == (precision == "bf16")


def test_what_is_said_to_be_best_is_what_could_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = iter([0.1, 0.9, 0.2])
    config = Changed(CONFIG, total_steps=6, evaluate_every=2)
    task = Changed(small_task(config), evaluate=lambda model: {"accuracy": next(results)})
    folder, save = fresh_folder(tmp_path), checkpoints_module.save_state

    def full(state: TrainingState, path: Path, **options: object) -> None:
        if state.step == 4:
            raise CheckpointError("no room")
        save(state, path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoints_module, "save_state", full)
    outcome = train(small_model(), task, config=config, folder=folder)
    assert (outcome.best, outcome.best_step) == (0.2, 6)
    assert numbers_of(folder / BEST)["step"] == 6


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_saves_and_stops_with_its_exit_code(tmp_path: Path, number: int) -> None:
    task, folder = small_task(), fresh_folder(tmp_path)

    def until(start: int, stop: int) -> Iterator[object]:
        for step, batch in zip(range(start, stop), task.batches(start, stop), strict=True):
            if step == 7:
                os.kill(os.getpid(), number)
            yield batch

    before = signal.getsignal(number)
    with pytest.raises(StoppedError, match="step 8 of 20") as caught:
        train(small_model(), Changed(task, batches=until), config=CONFIG, folder=folder)
    assert (caught.value.exit_code, caught.value.step) == (130, 8)
    assert caught.value.advice == (TryVerb("resume", (str(folder.parent),), "to continue"),)
    assert numbers_of(folder / LAST)["step"] == 8
    assert signal.getsignal(number) is before


def test_a_full_disk_keeps_the_last_good_checkpoint_and_says_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fresh_folder(tmp_path)
    train(small_model(), small_task(), config=Changed(CONFIG, total_steps=5), folder=folder)
    good = (folder / LAST).read_bytes()
    full = type("Usage", (), {"free": 100})()
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: full)
    with pytest.raises(CheckpointError, match=r"0\.0 MB free .*needs"):
        train(small_model(), small_task(), config=CONFIG, folder=folder)
    assert (folder / LAST).read_bytes() == good


def test_the_best_weights_are_kept_and_patience_ends_the_run(tmp_path: Path) -> None:
    results = iter([0.1, 0.5, 0.4, 0.3, 0.2])
    config = Changed(CONFIG, evaluate_every=2, patience=2, average_decay=0.9)
    task = Changed(small_task(config), evaluate=lambda model: {"accuracy": next(results)})
    folder, said = fresh_folder(tmp_path), Said()
    with listening(said):
        outcome = train(small_model(), task, config=config, folder=folder)
    assert said.remarks[-1].startswith("Stopped early") and "step 8 of 20" in said.remarks[-1]
    assert (outcome.best, outcome.best_step, outcome.steps) == (0.5, 4, 8)
    assert numbers_of(folder / BEST)["step"] == 4


def test_of_equal_evaluations_the_last_is_kept_and_none_of_them_resets_the_patience(tmp_path: Path) -> None:
    results = iter([0.5, 0.5, 0.5, 0.5])
    config = Changed(CONFIG, evaluate_every=2, patience=2)
    task = Changed(small_task(config), evaluate=lambda model: {"accuracy": next(results)})
    folder = fresh_folder(tmp_path)
    outcome = train(small_model(), task, config=config, folder=folder)
    assert (outcome.best, outcome.best_step, outcome.steps) == (0.5, 6, 6)
    assert numbers_of(folder / BEST)["step"] == 6


def test_time_spent_on_evaluations_counts_neither_as_speed_nor_as_waiting(tmp_path: Path) -> None:
    config = Changed(CONFIG, total_steps=8, evaluate_every=3, log_every=4)
    task, memory = small_task(config), Memory()

    def slow(model: nn.Module) -> dict[str, float]:
        time.sleep(1.0)
        return {"accuracy": 0.5}

    train(
        small_model(),
        Changed(task, evaluate=slow),
        config=config,
        folder=fresh_folder(tmp_path),
        sinks=[memory],
    )
    logged = [record for record in memory.records if "images_per_second" in record]
    assert len(logged) == 2
    # 64 images with an evaluation of a second among them: more than 64 a second only without it.
    assert all(record["images_per_second"] > 64 for record in logged)
    assert all(0 <= record["waiting_for_data"] <= 1 for record in logged)


def test_every_evaluation_is_said_with_its_step(tmp_path: Path) -> None:
    said = Said()
    config = Changed(CONFIG, total_steps=4, evaluate_every=2)
    task = Changed(small_task(config), evaluate=lambda model: {"loss": 0.25, "accuracy": 0.875})
    with listening(said):
        train(small_model(), task, config=config, folder=fresh_folder(tmp_path))
    figures = "validation loss 0.25, accuracy 87.5 %"
    assert said.remarks == [f"Step {step}: {figures}" for step in (2, 4)]


def test_averages_follow_the_weights_by_the_formula(tmp_path: Path) -> None:
    from vitrine.training.averages import Averages

    model = create_model("ViT-Ti/16", image_size=32, depth=1, num_classes=2)
    averages = Averages(model, decay=0.9)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    for step in range(30):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1)
        averages.update(step=step)
        decay = min(0.9, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * value
    for name, value in expected.items():
        torch.testing.assert_close(averages.weights[name], value, rtol=1e-5, atol=1e-6)
    before = weights(model)
    with averages.applied_to(model):
        torch.testing.assert_close(model.state_dict()["norm.weight"], expected["norm.weight"])
    assert_equal(weights(model), before)


def test_a_state_that_was_cut_short_is_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = fresh_folder(tmp_path)
    train(small_model(), small_task(), config=Changed(CONFIG, total_steps=5), folder=folder)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes((folder / LAST).read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"broken\.safetensors.*not a training state"):
        train(small_model(), small_task(), config=CONFIG, folder=folder, resume_from=broken)


def test_records_after_the_checkpoint_are_dropped_when_a_run_goes_on(tmp_path: Path) -> None:
    from vitrine.training.metrics_log import MetricsFile

    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.9}\n{"step": 3, "lo')
    sink = MetricsFile(RunFolder(tmp_path), done_steps=1)
    sink.write({"step": 2, "loss": 1.8})
    sink.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": 1.8},
    ]


def test_records_that_cannot_be_written_stop_the_run_in_one_sentence(tmp_path: Path) -> None:
    """/dev/full takes nothing, as a full disk does."""
    from vitrine.training.metrics_log import MetricsFile

    config, folder = Changed(CONFIG, checkpoint_every=1), fresh_folder(tmp_path)
    sink = MetricsFile(RunFolder(tmp_path / "run"))
    file, written = sink._file, []

    class Filling:
        def write(self, record: dict[str, object]) -> None:
            written.append(record)
            if len(written) == 3:
                sink._file = Path("/dev/full").open("w")  # noqa: SIM115 (the sink closes it)
            sink.write(record)

        def close(self) -> None:
            sink.close()

    with pytest.raises(CheckpointError, match=r"No space left.*checkpoint is kept"):
        train(small_model(), small_task(config), config=config, folder=folder, sinks=[Filling()])
    sink.close()
    file.close()
    assert numbers_of(folder / LAST)["step"] == 2


@pytest.mark.slow
def test_bf16_and_compilation_train_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Changed(CONFIG, total_steps=3)
    _, exact = run(tmp_path / "a", config)
    _, rough = run(tmp_path / "b", Changed(config, precision="bf16"))
    assert rough.losses == pytest.approx(exact.losses, rel=0.02)  # bf16 has 8 bits
    # Whether a compiled module trains the model's own weights is the question, not what the compiler makes of it.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    model, compiled = run(tmp_path / "c", Changed(config, compile=True))
    assert compiled.losses == pytest.approx(exact.losses, rel=1e-5)
    assert weights(model).keys() == weights(small_model()).keys()


def test_tasks_are_frozen_records() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        small_task().metric = "loss"  # type: ignore[misc]
    assert Task.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_out_of_memory_with_one_image_says_what_may_help(tmp_path: Path) -> None:
    def never(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        raise torch.OutOfMemoryError("no room")

    task = Changed(small_task(), loss_of=never)
    with pytest.raises(NoMemoryError, match=r"memory with 1 image.*activation_checkpointing") as caught:
        train(small_model(), task, config=CONFIG, folder=fresh_folder(tmp_path))
    assert caught.value.exit_code == 3


def until_gone(task: Task, step: int, error: Exception) -> Task:
    """Return a task whose files vanish before a step."""

    def batches(start: int, stop: int) -> Iterator[Batch]:
        for number, batch in zip(range(start, stop), task.batches(start, stop), strict=True):
            if number == step:
                raise error
            yield batch

    return Changed(task, batches=batches)


@pytest.mark.parametrize("when", ["training", "evaluation"])
def test_data_that_vanishes_stops_the_run_with_every_step_before_saved(tmp_path: Path, when: str) -> None:
    config = Changed(
        CONFIG, total_steps=12, checkpoint_every=100, average_decay=0.9, log_every=3, evaluate_every=7
    )
    _, expected = run(tmp_path / "whole", config)
    folder, gone, first, rest = (
        fresh_folder(tmp_path),
        MissingDataError("cannot read a.png"),
        Memory(),
        Memory(),
    )
    task = small_task(config)

    def evaluate(model: nn.Module) -> dict[str, float]:
        raise gone

    broken = until_gone(task, 7, gone) if when == "training" else Changed(task, evaluate=evaluate)
    with pytest.raises(DataError, match=r"a\.png; .*after step 7") as caught:
        train(small_model(), broken, config=config, folder=folder, sinks=[first])
    assert caught.value.advice[-1] == TryVerb("resume", (str(folder.parent),), "to continue")
    assert numbers_of(folder / LAST)["step"] == 7
    train(small_model(), task, config=config, folder=folder, sinks=[rest], resume_from=folder / LAST)
    assert first.losses + rest.losses == expected.losses


def test_memory_that_runs_out_in_mid_run_saves_every_step_before(tmp_path: Path) -> None:
    """A CPU says so by a RuntimeError of its own."""
    task, steps = small_task(), []

    def loss_of(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        steps.append(len(parts[0]))
        if len(steps) > 6:
            torch.empty(2**62, dtype=torch.uint8)  # more than any machine has
        return task.loss_of(module, parts)

    folder = fresh_folder(tmp_path)
    with pytest.raises(NoMemoryError) as caught:
        train(small_model(), Changed(task, loss_of=loss_of), config=CONFIG, folder=folder)
    assert caught.value.exit_code == 3
    assert numbers_of(folder / LAST)["step"] == 6
    assert min(steps) == 1  # halved as far as it goes


def test_a_signal_that_is_ignored_stays_ignored_as_nohup_wants_it(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        task = small_task()

        def hung_up(start: int, stop: int) -> Iterator[Batch]:
            for batch in task.batches(start, stop):
                os.kill(os.getpid(), signal.SIGHUP)
                yield batch

        outcome = train(
            small_model(), Changed(task, batches=hung_up), config=CONFIG, folder=fresh_folder(tmp_path)
        )
        assert outcome.steps == 20
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_files_of_writes_that_were_killed_are_removed_at_the_next_start(tmp_path: Path) -> None:
    folder = fresh_folder(tmp_path)
    folder.mkdir(parents=True)
    orphan = folder / ".last.safetensors.0123456789abcdef"
    orphan.touch()
    train(small_model(), small_task(), config=Changed(CONFIG, total_steps=1), folder=folder)
    assert sorted(file.name for file in folder.iterdir()) == ["best.safetensors", "last.safetensors"]
