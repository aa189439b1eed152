"""Encoder layers for fp32 training on a CPU with AVX-512: oneDNN's products, GELU and its derivative in one pass.

Same parameters, same names, same results within fp32's rounding. Whatever these products do not cover (evaluation,
autocast, few tokens, positions inside attention, layers that are wrapped, hooked or replaced) runs the parent class.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.attention import Places, SelfAttention
from vitrine.models.encoder import Mlp
from vitrine.models.kernels.onednn import Linear, TanhGeluMlp
from vitrine.models.touched import is_plain

# In narrower layers, or with fewer values, finding oneDNN's kernel takes longer than the product saves.
LEAST_WIDTH, LEAST_VALUES = 128, 2**17


class OneDnnMlp(Mlp):
    """The MLP with oneDNN's products."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (..., D) to (..., D)."""
        if not suits(tokens) or not self.is_plain():
            return super().forward(tokens)
        rows, expand, contract = tokens.reshape(-1, tokens.shape[-1]), self.expand, self.contract
        if self.gelu == "tanh":
            output = TanhGeluMlp.apply(rows, expand.weight, expand.bias, contract.weight, contract.bias)
        else:
            hidden = F.gelu(Linear.apply(rows, expand.weight, expand.bias))
            output = Linear.apply(hidden, contract.weight, contract.bias)
        return output.view(tokens.shape)  # type: ignore[no-any-return]


class OneDnnSelfAttention(SelfAttention):
    """Self-attention whose projections are oneDNN's products."""

    def forward(self, tokens: Tensor, places: Places = None, num_read: int | None = None) -> Tensor:
        """Map tokens (B, N, D) to mixed tokens (B, N, D)."""
        is_usual = (
            places is None and num_read is None and self.is_plain() and is_plain(self.to_out, nn.Linear)
        )
        if not is_usual or not suits(tokens):
            return super().forward(tokens, places, num_read)
        B, N, D = tokens.shape
        projected = Linear.apply(tokens.reshape(-1, D), self.to_qkv.weight, self.to_qkv.bias)
        q, k, v = projected.view(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)  # 3 x (B, H, N, K)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, D)
        return Linear.apply(mixed, self.to_out.weight, self.to_out.bias).view(B, N, D)  # type: ignore[no-any-return]


def suits(tokens: Tensor) -> bool:
    """Whether tokens are trained on in fp32 on a CPU, and enough of them."""
    return (
        tokens.device.type == "cpu"
        and tokens.dtype == torch.float32
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and tokens.numel() >= LEAST_VALUES
    )


def use_onednn(model: nn.Module) -> nn.Module:
    """Switch the model's attention and dense MLPs to oneDNN where this processor has been measured with it."""
    if not is_measured_processor():
        return model
    for module in model.modules():
        # Only the class changes, so that parameters, their names and all references to them stay valid.
        if type(module) is Mlp and module.dropout.rate == 0 and module.expand.in_features >= LEAST_WIDTH:
            module.__class__ = OneDnnMlp
        elif type(module) is SelfAttention and module.to_out.in_features >= LEAST_WIDTH:
            module.__class__ = OneDnnSelfAttention
    return model


def is_measured_processor() -> bool:
    """Whether torch has oneDNN here and the processor AVX-512."""
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"
