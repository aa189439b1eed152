"""One step where memory is too small."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from vitrine.runtime.processes import Processes
from vitrine.training import step as step_module
from vitrine.training.step import StepState, fit_micro_batch, forward_backward
from vitrine.training.stopping import NoMemoryError

# A CUDA device that nothing is computed on: two processes agree on a size before the first step there alone.
TWO_ON_CUDA = Processes(rank=0, world_size=2, device=torch.device("cuda"))
PARTS = (torch.ones(8, 3), torch.arange(8))  # inputs, keys


def loss_that_fits(most: int, tried: list[int]) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
    def loss_of(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        tried.append(len(parts[0]))
        if len(parts[0]) > most:
            raise torch.OutOfMemoryError("no room")
        return module(parts[0]).sum(dim=1), {}

    return loss_of


def fit(most: int, tried: list[int], *, others_failed: bool = False) -> StepState:
    state, module = StepState(micro_batch=8, bad=torch.zeros(())), nn.Linear(3, 2)
    fit_micro_batch(
        module, PARTS, loss_of=loss_that_fits(most, tried), state=state, autocast=nullcontext,
        processes=TWO_ON_CUDA,
    )  # fmt: skip
    assert all(parameter.grad is None for parameter in module.parameters()), "a trial leaves no gradient"
    return state


def test_processes_try_smaller_micro_batches_until_one_fits_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "anyone", lambda failed, processes: failed)
    tried: list[int] = []
    assert fit(3, tried).micro_batch == 2
    assert tried == [8, 4, 2]


def test_a_process_that_had_room_follows_one_that_had_not(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, False])
    monkeypatch.setattr(step_module, "anyone", lambda failed, processes: next(answers))
    tried: list[int] = []
    assert fit(8, tried).micro_batch == 4


def test_no_room_for_one_image_ends_the_run_on_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "anyone", lambda failed, processes: failed)
    with pytest.raises(NoMemoryError):
        fit(0, [])


@pytest.mark.parametrize("run", ["the trial", "the step"])
def test_another_error_than_missing_memory_is_raised(run: str) -> None:
    def broken(module: nn.Module, parts: object) -> tuple[Tensor, dict[str, Tensor]]:
        raise RuntimeError("a bug")

    given = {
        "loss_of": broken,
        "state": StepState(micro_batch=8, bad=torch.zeros(())),
        "autocast": nullcontext,
    }
    function = fit_micro_batch if run == "the trial" else forward_backward
    with pytest.raises(RuntimeError, match="a bug"):
        function(nn.Linear(3, 2), PARTS, processes=TWO_ON_CUDA, **given)  # type: ignore[arg-type]
