"""How fast this machine multiplies matrices and moves bytes: the ceilings of everything a transformer does."""

import time
from collections.abc import Callable

import torch

from vitrine.spelling import counted

SIDE = {"cuda": 8192, "cpu": 1024}
# Several times what any cache holds.
COPIED_BYTES = {"cuda": 2**29, "cpu": 2**28}
LEAST_REPEATS, LEAST_SECONDS = 5, 0.25


def measured_matmul_rate(precision: str, *, device: str | None = None) -> tuple[float, str]:
    """Return operations a second of a large square product, the best of several, and the device's name.

    Random numbers of the run that asks are left alone.
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
    """Return operations a second of a large square product in `dtype`, the best of several."""
    side = SIDE.get(device, SIDE["cpu"])
    numbers = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(side, side, device=device, dtype=dtype, generator=numbers) for _ in range(2))
    return 2 * side**3 / _least_seconds(lambda: left @ right, device=device)


def bytes_per_second(*, device: str) -> float:
    """Return bytes a second that a large copy reads and writes, the best of several."""
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
