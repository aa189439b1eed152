"""Where the kernels apply: products in bf16 on a CUDA device."""

import torch
from torch import Tensor


def is_low_precision(tokens: Tensor) -> bool:
    """Return whether products of these tokens run in bf16 on a CUDA device."""
    if not tokens.is_cuda:
        return False
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda") == torch.bfloat16
    return tokens.dtype == torch.bfloat16
