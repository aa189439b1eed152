"""What a device holds and what this process has taken of it."""

from pathlib import Path

import torch

from vitrine.runtime.hardware import group_limits, memory_of, peak_memory

CPU = torch.device("cpu")


def test_limits_of_all_groups_from_the_own_to_the_outermost_count(tmp_path: Path) -> None:
    job = tmp_path / "slice" / "job"
    job.mkdir(parents=True)
    (job / "memory.max").write_text("max\n")
    (tmp_path / "slice" / "memory.max").write_text("2000\n")
    (tmp_path / "memory.max").write_text("3000\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/slice/job\n")
    assert group_limits(tmp_path, membership) == [2000, 3000]
    assert group_limits(tmp_path, tmp_path / "nowhere") == [3000]
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("1000\n")  # as older systems have it
    assert min(group_limits(tmp_path, membership)) == 1000


def test_this_process_has_taken_some_of_the_memory_of_this_machine() -> None:
    machine, taken = memory_of(CPU), peak_memory(CPU)
    assert machine is not None and taken is not None
    assert 50e6 < taken < machine  # torch alone is more than the first
    kept = torch.ones(50_000_000)
    assert peak_memory(CPU) >= taken and kept[0] == 1


def test_a_device_that_nothing_is_known_of_says_nothing() -> None:
    assert memory_of(torch.device("meta")) is None and peak_memory(torch.device("meta")) is None
