"""Triton kernels for operations that the compiler leaves slow on CUDA; the eager modules are their reference."""

from importlib.util import find_spec

import torch
from torch import nn

from vitrine.models.kernels.precision import require_precision


def use_kernels(model: nn.Module, *, device: torch.device, precision: str) -> None:
    """Let a model's layers use the kernels where device and precision allow it: bf16 (or auto) or fp8 on CUDA."""
    require_precision(precision, device=device)
    if device.type != "cuda" or precision == "fp32" or find_spec("triton") is None:
        return
    # Triton is an optional package.
    from vitrine.models.kernels.layers import speed_up  # noqa: PLC0415 (imports triton, an extra)

    speed_up(model, in_fp8=precision == "fp8")
