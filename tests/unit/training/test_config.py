import pytest

from vitrine.training.config import is_bf16


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
