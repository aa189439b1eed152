"""Which device a run computes on, and in which precision."""

import functools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError, TryOption
from vitrine.runtime.processor import avoid_unusable_tiles
from vitrine.runtime.progress import notice
from vitrine.spelling import counted

DEVICES = ("cpu", "cuda", "mps")
ON_CPU = TryOption("device", "to compute on the CPU", "cpu")


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device called `name`; `auto` is this process's GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(f"cuda:{local_rank}" if name == "cuda" else name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in DEVICES:
        raise ConfigError(f"must be auto, cpu, cuda, cuda:N or mps, got {name!r}", option="device")
    if device.type == "cpu":
        avoid_unusable_tiles()
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("torch finds no Apple GPU (mps) on this machine", option="device", advice=[ON_CPU])
    if device.type == "cuda":
        _require_gpu(device)
        torch.cuda.set_device(device)
    return device


def names_gpu(device: str) -> bool:
    """Whether a device's name stands for a GPU on this machine; nothing is opened and nothing is refused."""
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    return has_gpu if device == "auto" else device.partition(":")[0] in ("cuda", "mps")


def _require_gpu(device: torch.device) -> None:
    if not torch.cuda.is_available():
        raise ConfigError("torch finds no CUDA GPU on this machine", option="device", advice=[ON_CPU])
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise ConfigError(
            f"{device} is not among the {counted(count, 'GPU')}, counted from 0", option="device"
        )


def is_bf16(precision: str, *, device: str) -> bool:
    """Whether a run on this kind of device computes in bf16 (also with fp8).

    `auto` does on CUDA, and on a CPU with bf16 instructions.
    """
    if precision != "auto":
        return precision in ("bf16", "fp8")
    return device == "cuda" or has_fast_bf16(torch.device(device))


def computing_in(precision: str, device: str) -> AbstractContextManager[None]:
    """Compute in bf16 inside the block if the precision of the run is bf16 on this kind of device."""
    return (
        torch.autocast(device, dtype=torch.bfloat16) if is_bf16(precision, device=device) else nullcontext()
    )


def has_fast_bf16(device: torch.device) -> bool:
    """Whether a CPU has bf16 instructions, with which torch computes about twice as fast as in fp32."""
    if device.type != "cpu":
        return False
    # Older versions than torch 2.12 do not report it.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@contextmanager
def same_threads(before: int | None) -> Iterator[None]:
    """Compute on the CPU with as many threads as `before`, since their number determines the order of additions.

    OMP_NUM_THREADS takes precedence; a notice then warns about differences.
    """
    now = torch.get_num_threads()
    if before is None or before == now:
        yield
        return
    if "OMP_NUM_THREADS" in os.environ:
        notice(
            f"This run began with {counted(before, 'thread')} and continues with {now}: last digits may differ"
        )
        yield
        return
    notice(
        f"Computing with {counted(before, 'thread')}, as the run began, for equal results; "
        "set OMP_NUM_THREADS to choose another number"
    )
    torch.set_num_threads(before)
    try:
        yield
    finally:
        torch.set_num_threads(now)


def copy_to_device(values: NDArray[np.generic] | Tensor, device: torch.device) -> Tensor:
    """Copy an array to a device; the host does not wait."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@functools.lru_cache(maxsize=256)
def device_constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return a few numbers as a float32 tensor, created on its device once; it must not be written to."""
    with torch.inference_mode(False):  # created once, used in every mode
        return torch.tensor(values, device=device, dtype=torch.float32)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random numbers on the CPU from this seed inside the block; afterwards they continue as before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
