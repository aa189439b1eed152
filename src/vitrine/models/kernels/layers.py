"""Encoder layers that use the kernels: same parameters, same names, same results within bf16's rounding.

Unsupported inputs (other devices and precisions, long sequences, relative and rotary positions, dropout,
SwiGLU, other activations than GELU, another attention scale, layers that are wrapped, hooked or replaced) run the
parent class.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.attention import Places, SelfAttention
from vitrine.models.encoder import Mlp
from vitrine.models.kernels import fp8, packed_attention
from vitrine.models.kernels.gelu import bias_gelu
from vitrine.models.kernels.precision import is_low_precision
from vitrine.models.kernels.pyramid_layers import FastConvolvedMlp, FastPatchEmbedding, FastReducedAttention
from vitrine.models.kernels.tnt_layers import FastTransformer, FastWordProjection
from vitrine.models.pvt_v2 import ConvolvedMlp
from vitrine.models.pyramid import PatchEmbedding, ReducedAttention
from vitrine.models.tnt import TNT, TNTBlock
from vitrine.models.touched import is_plain

# Layers that are always faster with the kernels.
FASTER: dict[type[nn.Module], type[nn.Module]] = {
    ConvolvedMlp: FastConvolvedMlp,
    ReducedAttention: FastReducedAttention,
    PatchEmbedding: FastPatchEmbedding,
}


class FastMlp(Mlp):
    """The MLP with one kernel for the backward pass of bias and GELU; optionally both products in fp8."""

    in_fp8 = False

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (..., D) to (..., D)."""
        if not is_low_precision(tokens) or not self.is_plain():
            return super().forward(tokens)
        tanh = self.gelu == "tanh"
        expand, contract = self.expand, self.contract
        if self.in_fp8 and fp8.suits(tokens):
            return fp8.mlp(tokens, expand.weight, expand.bias, contract.weight, contract.bias, tanh=tanh)
        if tanh and not torch.is_grad_enabled():
            # Bias and GELU run in the product's own kernel, which keeps nothing for a backward pass.
            rows = tokens.reshape(-1, tokens.shape[-1]).to(torch.bfloat16)
            weight, bias = expand.weight.to(rows.dtype), expand.bias.to(rows.dtype)
            hidden = torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
            return contract(hidden).view(tokens.shape)
        return contract(bias_gelu(F.linear(tokens, expand.weight), expand.bias, tanh=tanh))


class FastSelfAttention(SelfAttention):
    """Self-attention on packed q, k and v."""

    in_fp8 = False

    def forward(self, tokens: Tensor, places: Places = None, num_read: int | None = None) -> Tensor:
        """Map tokens (B, N, D) to mixed tokens (B, N, D)."""
        H = self.num_heads
        # Without gradients there is nothing to concatenate, and cuDNN's forward pass is faster.
        is_wanted = is_low_precision(tokens) and (self.in_fp8 or torch.is_grad_enabled())
        is_usual = places is None and num_read is None and self.is_plain()
        if not (is_wanted and is_usual and packed_attention.suits(tokens, num_heads=H)):
            return super().forward(tokens, places, num_read)
        in_precision = fp8 if self.in_fp8 and fp8.suits(tokens) else packed_attention
        mixed = in_precision.project_and_attend(tokens, self.to_qkv.weight, self.to_qkv.bias, num_heads=H)
        return self.to_out(mixed)


def speed_up(model: nn.Module, *, in_fp8: bool = False) -> nn.Module:
    """Switch every supported layer of a model to the kernels; return the model."""
    for module in model.modules():
        # Only the class changes, so that parameters, their names and all references to them stay valid.
        if type(module) is Mlp and module.dropout.rate == 0 and module.activation == "gelu":
            module.__class__ = FastMlp
        elif type(module) is SelfAttention and has_kernels(module):
            module.__class__ = FastSelfAttention
        elif type(module) in FASTER:
            module.__class__ = FASTER[type(module)]
        elif type(module) is TNTBlock:
            module.inner.__class__ = FastTransformer
        elif type(module) is TNT and is_plain(module.word_projection, nn.Conv2d):
            module.word_projection.__class__ = FastWordProjection
        if isinstance(module, FastMlp | FastSelfAttention):
            module.in_fp8 = in_fp8
    return model


def has_kernels(attention: SelfAttention) -> bool:
    """Whether the kernels compute this attention: no norms, the usual scale, no dropout of weights."""
    norms = (attention.q_norm, attention.norm)
    is_usual = all(isinstance(norm, nn.Identity) for norm in norms) and attention.scale is None
    is_usual = is_usual and type(attention.to_qkv) is nn.Linear
    return is_usual and isinstance(attention.dropout, nn.Identity)
