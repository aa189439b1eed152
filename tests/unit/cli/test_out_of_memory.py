"""Memory that runs out is one sentence on the command line, wherever it does."""

import pytest
import torch

from vitrine.cli import app
from vitrine.errors import is_out_of_memory


def allocate_too_much(**options: object) -> None:
    torch.empty(2**62, dtype=torch.uint8)


def allocate_in_python(**options: object) -> None:
    bytearray(2**62)


def a_bug(**options: object) -> None:
    raise RuntimeError("shapes do not fit")


@pytest.mark.parametrize("run", [allocate_too_much, allocate_in_python], ids=["torch", "python"])
def test_memory_that_runs_out_is_one_sentence(run: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.exit_code_of(run) == 3  # type: ignore[arg-type]
    assert "out of memory" in capsys.readouterr().err


def test_any_other_error_is_a_bug_and_raised() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        app.exit_code_of(a_bug)  # type: ignore[arg-type]


def test_errors_of_other_kinds_are_not_taken_for_memory() -> None:
    assert not is_out_of_memory(ValueError("can't allocate memory"))
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
