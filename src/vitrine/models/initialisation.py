"""Initialisation of new models, as in the authors' JAX code.

Patch kernel: lecun normal. Attention and MLP kernels: xavier uniform, each of q, k, v on its own; attention
biases 0, MLP biases normal 1e-6. Positions: normal .02. Class token and head: zeros.
"""

from collections.abc import Iterable

from torch import Tensor, nn

from vitrine.models.attention import AttentionPooling, SelfAttention
from vitrine.models.encoder import LayerScale, Mlp

POSITION_STD = 0.02
MLP_BIAS_STD = 1e-6
DEIT_STD = 0.02
# DINOv2 initialises registers like its class token: almost zero, but different from each other.
REGISTER_STD = 1e-6
# Standard deviation of a normal truncated at two deviations; dividing by it restores the intended one (as in JAX).
TRUNCATED_NORMAL_STD = 0.87962566103423978


def initialise_layer(module: nn.Module) -> None:
    """Fill the parameters that `module` itself owns; layers inside it are visited separately."""
    if isinstance(module, nn.Conv2d):
        lecun_normal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, SelfAttention):
        xavier_each_(module.to_qkv, parts=3)
        xavier_each_(module.to_out)
    elif isinstance(module, AttentionPooling):
        nn.init.xavier_uniform_(module.probe)
        xavier_each_(module.to_q)
        xavier_each_(module.to_kv, parts=2)
        xavier_each_(module.to_out)
    elif isinstance(module, Mlp):
        for layer in (module.expand, module.contract):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=MLP_BIAS_STD)
    elif isinstance(module, LayerScale):
        nn.init.constant_(module.gain, module.initial)


def initialise_head(head: nn.Linear | None, *, bias: float) -> None:
    """Set a head to zero, so that a new model predicts uniformly; `bias` as in sigmoid pre-training."""
    if head is not None:
        nn.init.zeros_(head.weight)
        nn.init.constant_(head.bias, bias)


def xavier_each_(layer: nn.Linear, *, parts: int = 1) -> None:
    """Fill each part of a fused layer as a separate layer; the fused fan-out would make the values too small."""
    for part in layer.weight.chunk(parts):
        nn.init.xavier_uniform_(part)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def lecun_normal_(weight: Tensor) -> None:
    """Fill with a truncated normal of variance 1 / fan-in."""
    std = weight[0].numel() ** -0.5 / TRUNCATED_NORMAL_STD
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def initialise_like_deit(model: nn.Module, *, tables: Iterable[Tensor]) -> None:
    """Fill a model as DeiT does, and with it T2T-ViT, CPVT and TNT: dense kernels, tokens and tables normal .02.

    Biases are zero, convolutions begin as torch's do. The authors cut the normal at 2, a hundred deviations away.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=DEIT_STD)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.Conv2d, nn.LayerNorm)):
            module.reset_parameters()
    for table in tables:
        nn.init.normal_(table, std=DEIT_STD)
