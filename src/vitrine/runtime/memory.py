"""How much memory a device has, and how much of it this process has taken."""

import contextlib
import os
import sys
from pathlib import Path

import torch

GROUPS = Path("/sys/fs/cgroup")


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of a device; of the CPU what the machine has, or this container or job may take."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type != "cpu":
        return None
    limits = group_limits(GROUPS, Path("/proc/self/cgroup"))
    with contextlib.suppress(AttributeError, ValueError):  # where the system does not say
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
        with contextlib.suppress(OSError, ValueError):  # not there, or `max`
            limits.append(int(file.read_text()))
    return limits


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that this process has held so far: on CUDA in tensors, on the CPU in all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most  # Linux counts in KiB
