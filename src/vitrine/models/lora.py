"""Low-rank adaptation (LoRA, arXiv:2106.09685): a frozen layer plus a product of two thin trained matrices.

W x + scale B A x with A (R, in) and B (out, R). B starts at zero, so that adding it does not change the outputs. The
dense layers of all blocks are adapted, under their own names: beside `to_qkv.weight` are `to_qkv.lora_a` and
`to_qkv.lora_b`. Adapters can be merged: W + scale B A is a plain layer again.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models.attention import UnbiasedKeys

MOST_RANK = 1024


class LoraLinear(nn.Linear):
    """A dense layer with an adapter."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_scale: float

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows (..., in) to (..., out)."""
        out = super().forward(rows)
        return out + self.lora_scale * F.linear(F.linear(rows, self.lora_a), self.lora_b)


class LoraUnbiasedKeys(LoraLinear, UnbiasedKeys):
    """The same for queries, keys and values whose keys have no bias."""


ADAPTED: dict[type[nn.Module], type[LoraLinear]] = {nn.Linear: LoraLinear, UnbiasedKeys: LoraUnbiasedKeys}
PLAIN: dict[type[nn.Module], type[nn.Module]] = {adapted: plain for plain, adapted in ADAPTED.items()}


def add_adapters(model: nn.Module, *, rank: int, alpha: float | None = None) -> None:
    """Give every dense layer of every block an adapter of rank R and scale alpha / R; alpha is R by default.

    A model that has adapters gets fresh ones.
    """
    if not 1 <= rank <= MOST_RANK:
        raise ConfigError(f"must be from 1 to {MOST_RANK}, got {rank}", option="lora")
    layers = adaptable_layers(model)
    if not layers:
        raise ConfigError(
            "adapters need a model whose blocks have dense layers; this one has none", option="lora"
        )
    for layer in layers.values():
        # Only the class changes, so that weights, their names and all references to them stay valid.
        if type(layer) in ADAPTED:
            layer.__class__ = ADAPTED[type(layer)]
        assert isinstance(layer, LoraLinear)
        fewer = min(rank, layer.in_features, layer.out_features)
        layer.lora_scale = (rank if alpha is None else alpha) / rank
        layer.lora_a = nn.Parameter(layer.weight.new_empty(fewer, layer.in_features))
        layer.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, fewer))
        if not layer.lora_a.is_meta:
            nn.init.kaiming_uniform_(layer.lora_a, a=math.sqrt(5))


def set_adapter(layer: nn.Linear, a: Tensor, b: Tensor) -> None:
    """Give one dense layer the adapter b (out, R) times a (R, in), which contains its scale."""
    if type(layer) in ADAPTED:
        layer.__class__ = ADAPTED[type(layer)]
    assert isinstance(layer, LoraLinear)
    layer.lora_a, layer.lora_b, layer.lora_scale = nn.Parameter(a), nn.Parameter(b), 1.0


def adaptable_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the dense layers of a model's blocks by name, adapted or not."""
    known = {*ADAPTED, *PLAIN}
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) in known and isinstance(module, nn.Linear) and ".blocks." in f".{name}"
    }


def adapters_of(model: nn.Module) -> dict[str, LoraLinear]:
    """Return the adapted layers of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}


@torch.no_grad()
def merge_adapters(model: nn.Module) -> None:
    """Merge every adapter into its layer, in fp32, so that plain layers remain."""
    for layer in adapters_of(model).values():
        update = layer.lora_scale * (layer.lora_b.float() @ layer.lora_a.float())
        layer.weight.copy_((layer.weight.float() + update).to(layer.weight.dtype))
        del layer.lora_a, layer.lora_b, layer.lora_scale
        layer.__class__ = PLAIN[type(layer)]  # type: ignore[assignment]


def is_adapter(name: str) -> bool:
    """Whether a parameter belongs to an adapter, by its name."""
    return name.endswith((".lora_a", ".lora_b"))
