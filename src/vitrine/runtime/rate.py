"""How fast this machine multiplies matrices: the ceiling of everything a transformer does."""

import time

import torch

SIDE = {"cuda": 8192, "cpu": 1024}
LEAST_REPEATS, LEAST_SECONDS = 5, 0.25


def measured_matmul_rate(precision: str, *, device: str | None = None) -> tuple[float, str]:
    """Return operations a second of a large square product, the best of several, and the device's name.

    Random numbers of the run that asks are left alone.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    # CPUs without bf16 units emulate it slowly; training there is in fp32 in any case.
    dtype = torch.bfloat16 if precision == "bf16" and device == "cuda" else torch.float32
    side = SIDE.get(device, SIDE["cpu"])
    numbers = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(side, side, device=device, dtype=dtype, generator=numbers) for _ in range(2))
    seconds: list[float] = []
    end = time.perf_counter() + LEAST_SECONDS
    while len(seconds) < LEAST_REPEATS or time.perf_counter() < end:
        began = time.perf_counter()
        left @ right
        if device != "cpu":
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - began)
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU ({torch.get_num_threads()} threads)"
    return 2 * side**3 / min(seconds), name
