"""In which precision the kernels apply: products in bf16 or fp8 on a CUDA device."""

from importlib.util import find_spec

import torch
from torch import Tensor

from vitrine.errors import ConfigError, TryOption

# Ada and Hopper: the first devices that support fp8.
FIRST_WITH_FP8 = (8, 9)
USE_BF16 = TryOption("precision", "instead", "bf16")


def require_precision(precision: str, *, device: torch.device) -> None:
    """Refuse fp8 on a device that does not support it."""
    if precision != "fp8":
        return
    needed = "fp8 needs a CUDA device of the Ada or Hopper generation or later, and Triton"
    if device.type != "cuda":
        raise ConfigError(f"{needed}; this run is on {device.type}", option="precision", advice=[USE_BF16])
    if torch.cuda.get_device_capability(device) < FIRST_WITH_FP8:
        name = torch.cuda.get_device_name(device)
        raise ConfigError(f"{needed}; this is {name}", option="precision", advice=[USE_BF16])
    if find_spec("triton") is None:
        raise ConfigError(
            f"{needed}, which is missing; install it with: pip install triton",
            option="precision",
            advice=[USE_BF16],
        )


def is_low_precision(tokens: Tensor) -> bool:
    """Return whether products of these tokens run in bf16 on a CUDA device."""
    if not tokens.is_cuda:
        return False
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda") == torch.bfloat16
    return tokens.dtype == torch.bfloat16
