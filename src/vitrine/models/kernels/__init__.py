"""Triton kernels for operations that the compiler leaves slow on CUDA, and oneDNN's products for fp32 on a CPU.

The eager modules are the reference of both.
"""

from importlib.util import find_spec

import torch
from torch import nn

from vitrine.models.kernels.onednn_layers import use_onednn
from vitrine.models.kernels.precision import require_precision


def use_kernels(model: nn.Module, *, device: torch.device, precision: str) -> None:
    """Let a model's layers use the kernels where device and precision allow it.

    They allow it in bf16 (or auto) and fp8 on CUDA, and in fp32 on a CPU with AVX-512, whose layers look at the
    precision of each batch.
    """
    require_precision(precision, device=device)
    if device.type == "cpu":
        use_onednn(model)
    if device.type != "cuda" or precision == "fp32" or find_spec("triton") is None:
        return
    # Triton is an optional package.
    from vitrine.models.kernels.layers import speed_up  # noqa: PLC0415 (imports triton, an extra)

    speed_up(model, in_fp8=precision == "fp8")
