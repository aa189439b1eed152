"""From the host to a device without waiting for it.

A plain copy of unpinned memory waits until the device has done all that it was asked before, so that one such copy a
step keeps the host from launching the next step while the last one runs.
"""

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(values: NDArray[np.generic] | Tensor, device: torch.device) -> Tensor:
    """Copy an array to a device; the host goes on at once."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@functools.lru_cache(maxsize=256)
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return a few numbers as a float32 tensor that is made on its device once; not to be written to."""
    with torch.inference_mode(False):  # made once, used in every mode
        return torch.tensor(values, device=device, dtype=torch.float32)
