"""Facts about this machine: memory of a device, peak memory of this process, speed of matrix products and copies."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from vitrine.spelling import counted

if sys.platform != "win32":
    import resource

GROUPS = Path("/sys/fs/cgroup")
# Sides of the square matrices whose product is timed.
SIDE = {"cuda": 8192, "cpu": 1024}
# Several times the size of any cache.
COPIED_BYTES = {"cuda": 2**29, "cpu": 2**28}
LEAST_REPEATS, LEAST_SECONDS = 5, 0.25


def memory_of(device: torch.device) -> int | None:
    """Return the memory of a device in bytes; for the CPU, of the machine or within a container's limit."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type != "cpu":
        return None
    limits = group_limits(GROUPS, Path("/proc/self/cgroup"))
    with contextlib.suppress(AttributeError, ValueError):  # the system does not report it
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def group_limits(root: Path, membership: Path) -> list[int]:
    """Return the limits, in bytes, of the control groups that this process is in, from its own to the outermost."""
    own = root
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            if line.startswith("0::/"):
                own = root / line.removeprefix("0::/")
    files = [place / "memory.max" for place in (own, *own.parents) if place.is_relative_to(root)]
    limits = []
    for file in (*files, root / "memory" / "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # missing, or `max`
            limits.append(int(file.read_text()))
    return limits


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory of this process in bytes: of tensors on CUDA, of everything on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or sys.platform == "win32":
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most  # Linux counts in KiB


def measured_matmul_rate(precision: str, *, device: str | None = None) -> tuple[float, str]:
    """Return operations per second of a large square product, the best of several, and the device's name.

    The caller's random numbers do not change.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    # CPUs without bf16 units emulate it slowly; training there is in fp32 in any case.
    dtype = torch.bfloat16 if precision == "bf16" and device == "cuda" else torch.float32
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"CPU ({counted(torch.get_num_threads(), 'thread')})"
    )
    return flops_per_second(dtype, device=device), name


def flops_per_second(dtype: torch.dtype, *, device: str) -> float:
    """Return operations per second of a large square product in `dtype`, the best of several."""
    side = SIDE.get(device, SIDE["cpu"])
    numbers = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(side, side, device=device, dtype=dtype, generator=numbers) for _ in range(2))
    return 2 * side**3 / _least_seconds(lambda: left @ right, device=device)


def bytes_per_second(*, device: str) -> float:
    """Return bytes per second that a large copy reads and writes, the best of several."""
    source = torch.zeros(COPIED_BYTES.get(device, COPIED_BYTES["cpu"]), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _least_seconds(lambda: target.copy_(source), device=device)


def _least_seconds(run: Callable[[], object], *, device: str) -> float:
    seconds: list[float] = []
    end = time.perf_counter() + LEAST_SECONDS
    while len(seconds) < LEAST_REPEATS or time.perf_counter() < end:
        began = time.perf_counter()
        run()
        if device != "cpu":
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
