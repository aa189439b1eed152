import pytest

from vitrine.runtime.devices import is_bf16
from vitrine.training.config import TrainingConfig


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [
        ("auto", "cuda", True), ("auto", "cpu", False), ("bf16", "cpu", True), ("fp32", "cuda", False),
        ("fp8", "cuda", True),
    ],
)  # fmt: skip
def test_auto_is_bf16_on_cuda_alone_and_fp8_computes_the_rest_in_it(
    precision: str, device: str, expected: bool
) -> None:
    assert is_bf16(precision, device=device) is expected


@pytest.mark.parametrize(
    ("total", "asked", "apart"), [(100_000, None, 1000), (500, None, 125), (3, None, 1), (500, 200, 200)]
)
def test_a_short_run_has_checkpoints_too_unless_asked_otherwise(
    total: int, asked: int | None, apart: int
) -> None:
    assert TrainingConfig(total_steps=total, checkpoint_every=asked).checkpoint_steps == apart
