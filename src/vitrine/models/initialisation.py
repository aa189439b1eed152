"""Initialisation of new models, as in the authors' JAX code; at the end, as DeiT and its descendants do it.

Patch kernel: lecun normal. Attention and MLP kernels: xavier uniform, each of q, k, v on its own; attention
biases 0, MLP biases normal 1e-6. Positions: normal .02. Class token and head: zeros.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from vitrine.models.attention import AttentionPooling, SelfAttention
from vitrine.models.cnn_stem import CnnStem
from vitrine.models.encoder import GatedMlp, LayerScale, Mlp
from vitrine.models.line_positions import Relative1D
from vitrine.models.mimetic import initialise_mimetic
from vitrine.models.positions import (
    Factorised,
    Learned1D,
    Learned2D,
    RelativeBias,
    initialise_positions,
)
from vitrine.models.resnet_stem import ResNetStem
from vitrine.models.t2t_vit import TokenPerformer, TokenTransformer

MLP_BIAS_STD = 1e-6
DEIT_STD = 0.02
POSITION_MODULES = (Learned1D, Learned2D, Factorised, Relative1D, RelativeBias)
# DINOv2 initialises registers like its class token: almost zero, but different from each other.
REGISTER_STD = 1e-6
# Standard deviation of a normal truncated at two deviations; dividing by it restores the intended one (as in JAX).
TRUNCATED_NORMAL_STD = 0.87962566103423978


def initialise_vit(model: Any) -> None:
    """Initialise every parameter of a ViT, except those of a registered network as its stem."""
    if model.config.initialisation == "deit":
        tokens = (model.class_token, model.distillation_token)
        initialise_like_deit(model, tables=[token for token in tokens if token is not None])
        for head in (model.head, model.distillation_head):
            if head is not None:
                nn.init.constant_(head.bias, model.config.head_bias)
    else:
        initialise_like_vit(model)
    if model.config.initialisation == "mimetic":
        for attention in (module for module in own_modules(model) if isinstance(module, SelfAttention)):
            initialise_mimetic(attention.to_qkv, attention.to_out, num_heads=attention.num_heads)
    if model.registers is not None:
        nn.init.normal_(model.registers, std=REGISTER_STD)
    if isinstance(model.stem, ResNetStem):
        model.stem.zero_branches()


def initialise_like_vit(model: Any) -> None:
    """Initialise a ViT as its authors do, except for its registers."""
    for module in own_modules(model):
        initialise_layer(module)
    for positions in model.positions:
        initialise_positions(positions)
    for token in (model.class_token, model.distillation_token):
        if token is not None:
            nn.init.zeros_(token)
    if model.representation is not None:
        lecun_normal_(model.representation.weight)
        if model.representation.bias is not None:
            nn.init.zeros_(model.representation.bias)
    for head in (model.head, model.distillation_head):
        initialise_head(head, bias=model.config.head_bias)


def own_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and its submodules in order, without registered networks."""
    yield module
    for child in module.children():
        if not isinstance(child, CnnStem):
            yield from own_modules(child)


def initialise_layer(module: nn.Module) -> None:
    """Fill the parameters that `module` itself owns; layers inside it are visited separately."""
    if isinstance(module, nn.Conv2d):
        lecun_normal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.RMSNorm):
        nn.init.ones_(module.weight)
    elif isinstance(module, nn.modules.batchnorm._BatchNorm):
        module.reset_parameters()  # also resets the running statistics
    elif isinstance(module, SelfAttention):
        xavier_each_(module.to_qkv, parts=3)
        xavier_each_(module.to_out)
    elif isinstance(module, AttentionPooling):
        nn.init.xavier_uniform_(module.probe)
        xavier_each_(module.to_q)
        xavier_each_(module.to_kv, parts=2)
        xavier_each_(module.to_out)
    elif isinstance(module, Mlp | GatedMlp):
        # Weights and biases in turn, so that a seed draws the same numbers as in earlier versions.
        for layer, parts in ((module.expand, 1 if isinstance(module, Mlp) else 2), (module.contract, 1)):
            xavier_each_(layer, parts=parts)
            nn.init.normal_(layer.bias, std=MLP_BIAS_STD)
    elif isinstance(module, LayerScale):
        nn.init.constant_(module.gain, module.initial)
    elif isinstance(module, TokenTransformer):
        xavier_each_(module.to_qkv, parts=3)
        xavier_each_(module.to_out)
    elif isinstance(module, TokenPerformer):
        xavier_each_(module.to_kqv, parts=3)
        xavier_each_(module.to_out)
        module.draw_features()


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

    Biases are zero; convolutions keep torch's initialisation. The authors truncate the normal at 2, a hundred
    deviations away, which has no effect.
    """
    for module in own_modules(model):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=DEIT_STD)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d):
            module.reset_parameters()
        elif isinstance(module, POSITION_MODULES):
            initialise_positions(module)
        elif isinstance(module, TokenPerformer):
            module.draw_features()
        elif isinstance(module, AttentionPooling):
            nn.init.normal_(module.probe, std=DEIT_STD)
        elif not isinstance(module, SelfAttention | Mlp | GatedMlp | TokenTransformer):
            initialise_layer(module)  # norms and gains
    for table in tables:
        nn.init.normal_(table, std=DEIT_STD)


def initialise_linears(model: nn.Module) -> None:
    """Fill linear layers with a normal of deviation .02 and biases of zero; norms with ones and zeros (pyramids)."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=DEIT_STD)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def initialise_convolutions(model: nn.Module) -> None:
    """Fill convolutions with a normal of variance 2 / fan-out and biases of zero (PVT v2, PCPVT)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=(2.0 / fan_out) ** 0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
