"""Spikes and gaps are reported once, in a sentence with their numbers, and are part of a run's state."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from unit.training.simple import CONFIG, Memory, Said, fresh_folder, small_model, small_task

from vitrine.errors import CheckpointError
from vitrine.runtime.progress import listening
from vitrine.training.loop import train
from vitrine.training.monitor import WINDOW, Monitor


def sentences(losses: list[float], monitor: Monitor | None = None) -> list[str]:
    monitor = monitor or Monitor()
    records = ({"step": 10 * n, "loss": loss, "gradient_norm": loss / 2} for n, loss in enumerate(losses, 1))
    return [sentence for record in records if (sentence := monitor.after_log(record)) is not None]


STEADY = [2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.0, 2.1, 1.9, 2.0]


def test_a_spike_is_reported_where_it_begins_and_where_it_ends() -> None:
    spike, back = sentences([*STEADY, 6.0, 8.0, 3.5, 2.1, 2.0])
    assert "step 110: 6 after 2," in spike and spike.endswith("norm 3 after 1")
    assert "2.1 at step 140," in back and back.endswith("to 8 at step 110")


def test_a_loss_that_stays_high_is_reported_once_and_then_the_usual_one() -> None:
    reports = sentences([*STEADY, *[6.0] * 60])
    assert len(reports) == 2
    assert "spike at step 110: " in reports[1] and "6 now, 2 before; resume" in reports[1]


@pytest.mark.parametrize(
    "losses", [STEADY * 3, [5.0 * 0.97**n for n in range(80)], [0.0] * 30, [*STEADY[:5], 9.0]]
)
def test_noise_and_a_falling_loss_are_no_spikes(losses: list[float]) -> None:
    assert sentences(losses) == []


def evaluated(pairs: list[tuple[float, float]]) -> list[str]:
    monitor, found = Monitor(), []
    for number, (training, validation) in enumerate(pairs, 1):
        monitor.after_log({"step": 10 * number, "loss": training, "gradient_norm": 1.0})
        if sentence := monitor.after_evaluation(10 * number, {"loss": validation}):
            found.append(sentence)
    return found


def test_overfitting_is_reported_once_with_the_step_of_the_least_validation_loss() -> None:
    falling = [(1.0, 1.1), (0.8, 0.9), (0.6, 0.95), (0.4, 1.0), (0.3, 1.1), (0.2, 1.2), (0.1, 1.3)]
    [report] = evaluated(falling)
    assert report.startswith("Overfitting since step 20: ")
    assert "from 0.9 to 1.1, " in report and report.endswith("from 0.8 to 0.3")
    assert evaluated([(1.0, 1.1), (1.0, 1.2), (1.0, 1.3), (1.0, 1.4), (1.0, 1.5)]) == []


def test_accuracies_far_apart_are_reported_and_again_only_when_further() -> None:
    monitor, said = Monitor(), []
    monitor.after_log({"step": 1, "loss": 1.0, "gradient_norm": 1.0, "accuracy": 1.0})
    assert monitor.after_evaluation(1, {"accuracy": 0.1}) is None  # too early to tell
    assert sentences([1.0] * 8, monitor) == []
    for training, validation in ((0.6, 0.5), (0.9, 0.65), (0.92, 0.65), (0.99, 0.6)):
        monitor.after_log({"step": 10, "loss": 1.0, "gradient_norm": 1.0, "accuracy": training})
        said.append(monitor.after_evaluation(10, {"accuracy": validation}))
    numbers = [report and re.findall(r"\d[\d.]*", report) for report in said]
    assert numbers == [None, ["90.0", "65.0", "25"], None, ["99.0", "60.0", "39"]]


def test_its_state_survives_json_and_refuses_what_it_does_not_know() -> None:
    monitor = Monitor()
    sentences([*STEADY, 6.0], monitor)
    again = Monitor.of(json.loads(json.dumps(monitor.numbers())))
    assert again == monitor and len(again.losses) <= WINDOW
    [report] = sentences([2.0], again)
    assert "at 2 at step 10," in report and report.endswith("to 6 at step 110")
    for bad in ({"unknown": 1}, {"losses": ["x"]}):
        with pytest.raises(CheckpointError):
            Monitor.of(bad)


def test_a_run_writes_the_sentence_to_its_record_and_says_it(tmp_path: Path) -> None:
    config, task = dataclasses.replace(CONFIG, evaluate_every=5), small_task()
    memory, said, steps = Memory(), Said(), []

    def spiking(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        losses, stats = task.loss_of(module, parts)
        steps.append(len(steps))
        return losses * (10.0 if len(steps) == 13 else 1.0), stats

    with listening(said):
        train(
            small_model(), dataclasses.replace(task, loss_of=spiking), config=config, folder=fresh_folder(tmp_path),
            sinks=[memory],
        )  # fmt: skip
    events = [(record["step"], record["event"]) for record in memory.records if "event" in record]
    assert [step for step, _ in events] == [13, 14]
    assert str(events[0][1]).startswith("Loss spike at step 13: ")
    assert [remark for remark in said.remarks if "spike" in remark] == [event for _, event in events]


def test_averaged_weights_are_evaluated_beside_the_raw_ones(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, average_decay=0.9, evaluates_raw=True, total_steps=6)
    model, memory, said = small_model(), Memory(), Said()
    with listening(said):
        train(model, small_task(), config=config, folder=fresh_folder(tmp_path), sinks=[memory])
    record = memory.records[-1]
    raw = float(sum(parameter.detach().double().sum() for parameter in model.parameters()))
    assert record["raw_val_accuracy"] == pytest.approx(raw)
    assert record["val_accuracy"] != record["raw_val_accuracy"]
    assert "; raw weights accuracy " in said.remarks[-1]
    assert torch.isfinite(torch.tensor(record["val_accuracy"]))
