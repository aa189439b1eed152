"""What is said of a device."""

import pytest
import torch

from vitrine.runtime.devices import has_fast_bf16, same_threads


def test_bf16_is_recommended_only_on_a_processor_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for told, expected in (
        ({"avx512_bf16": True}, True),
        ({"amx_bf16": True}, True),
        ({"avx2": True}, False),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda told=told: told, raising=False)
        assert has_fast_bf16(cpu) is expected
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not has_fast_bf16(cpu)
    assert not has_fast_bf16(torch.device("meta"))


def test_a_run_goes_on_with_the_threads_that_it_began_with_unless_they_were_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with same_threads(now + 1):
        assert torch.get_num_threads() == now + 1
    assert torch.get_num_threads() == now
    for before in (None, now):
        with same_threads(before):
            assert torch.get_num_threads() == now
    monkeypatch.setenv("OMP_NUM_THREADS", str(now))
    with same_threads(now + 1):
        assert torch.get_num_threads() == now
