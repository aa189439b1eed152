"""Settings of a training run: which precision `auto` means, checkpoints, values out of their range."""

import dataclasses

import pytest
import torch
from unit.training.simple import CONFIG

from vitrine.errors import ConfigError
from vitrine.runtime.devices import is_bf16
from vitrine.training.config import TrainingConfig


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [
        ("auto", "cuda", True), ("auto", "cpu", False), ("bf16", "cpu", True), ("fp32", "cuda", False),
        ("fp8", "cuda", True),
    ],
)  # fmt: skip
def test_auto_is_bf16_on_cuda_and_fp8_computes_the_rest_in_it(
    precision: str, device: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    assert is_bf16(precision, device=device) is expected


def test_auto_is_bf16_on_a_cpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    assert is_bf16("auto", device="cpu")
    assert not is_bf16("fp32", device="cpu")


@pytest.mark.parametrize(
    ("total", "asked", "apart"), [(100_000, None, 1000), (500, None, 125), (3, None, 1), (500, 200, 200)]
)
def test_a_short_run_has_checkpoints_too_unless_asked_otherwise(
    total: int, asked: int | None, apart: int
) -> None:
    assert TrainingConfig(total_steps=total, checkpoint_every=asked).checkpoint_steps == apart


@pytest.mark.parametrize(
    ("name", "value"),
    [("optimizer", "adam"), ("total_steps", 0), ("micro_batch", 0), ("evaluate_every", 0), ("lr", 0.0),
     ("betas", (0.9, 1.0)), ("weight_decay", -1.0)],
)  # fmt: skip
def test_a_setting_out_of_its_range_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        dataclasses.replace(CONFIG, **{name: value})  # type: ignore[arg-type]
