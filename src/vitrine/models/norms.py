"""The norms and activations that a model can be built with.

The paper has LayerNorm and GELU; the others are options, for weights and code from elsewhere.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.choices import Activation, Gelu, Norm

# sigmoid(1.702 x) is close to the normal distribution's share below x (Hendrycks and Gimpel, arXiv:1606.08415).
QUICK_GELU_SLOPE = 1.702


def make_norm(kind: Norm, width: int, *, eps: float) -> nn.LayerNorm | nn.RMSNorm:
    """Create a norm over the last axis: zero mean and unit variance, or unit mean square without a bias."""
    return nn.LayerNorm(width, eps=eps) if kind == "layer_norm" else nn.RMSNorm(width, eps=eps)


def activation_of(kind: Activation, *, gelu: Gelu) -> Callable[[Tensor], Tensor]:
    """Return the function between the two layers of an MLP."""
    functions: dict[Activation, Callable[[Tensor], Tensor]] = {
        "gelu": partial(F.gelu, approximate="tanh" if gelu == "tanh" else "none"),
        "relu": F.relu,
        "silu": F.silu,
        "quick_gelu": quick_gelu,
    }
    return functions[kind]


def quick_gelu(values: Tensor) -> Tensor:
    """Return x sigmoid(1.702 x), an approximation of GELU that some published weights were trained with."""
    return values * torch.sigmoid(QUICK_GELU_SLOPE * values)
