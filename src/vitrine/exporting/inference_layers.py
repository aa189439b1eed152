"""The layers of a deployed ViT or ResNet: constants precomputed, scales and norms multiplied into the weights.

Shapes: B images, T tokens, D width, H heads, K = D / H channels per head, R tokens that the head reads.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models import ViT
from vitrine.models.attention import UnbiasedKeys
from vitrine.models.axial import axis_of
from vitrine.models.choices import NO_TABLE
from vitrine.models.config import ViTConfig
from vitrine.models.encoder import Block, LayerScale, ParallelBlock
from vitrine.models.resnet_stem import SameConv2d
from vitrine.models.rotary import Rotation
from vitrine.models.standardised_conv import StandardisedConv2d


class InferenceBlock(nn.Module):
    """One encoder layer; with `num_read`, for the first `num_read` tokens only."""

    def __init__(self, model: ViT, *, layer: int, num_read: int | None) -> None:
        super().__init__()
        block, config = model.blocks[layer], model.config
        assert isinstance(block, (Block, ParallelBlock))
        self.num_read = num_read
        self.positions: Tensor | None
        self.register_buffer("positions", added_positions(model, layer=layer))
        self.grid = config.grid_size
        has_encoding = config.positions == "peg" and layer - 1 in config.peg_layers
        self.encoding = model.positions[config.peg_layers.index(layer - 1)] if has_encoding else None
        parts = [block] if isinstance(block, Block) else block.parts
        keys = relative_keys(model, layer=layer)
        with torch.no_grad():
            rotation = None if model.rotary is None else model.rotary(config.grid_size, num_images=1)
        bias = logit_bias(model, layer=layer)
        self.branches = nn.ModuleList(
            InferenceBranch(part, config, keys, bias, rotation, num_read=num_read) for part in parts
        )

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Map tokens (B, T, D) to (B, T, D), or to (B, R, D), and return the attention weights (B, H, R, T)."""
        if self.positions is not None:
            tokens = tokens + self.positions
        if self.encoding is not None:
            tokens = self.encoding(tokens, self.grid)
        read = tokens if self.num_read is None else tokens[:, : self.num_read]  # (B, R, D)
        branches = [branch for branch in self.branches if isinstance(branch, InferenceBranch)]
        weights = []
        for branch in branches:
            added, attention = branch.attend(tokens)
            read = read + added
            weights.append(attention)
        tokens = read
        for branch in branches:
            tokens = tokens + branch.transform(read)
        return tokens, torch.cat(weights, dim=1)


class InferenceBranch(nn.Module):
    """Attention and MLP of one encoder layer, or of one of several side by side."""

    def __init__(
        self,
        block: Block,
        config: ViTConfig,
        relative_keys: Tensor | None,
        logit_bias: Tensor | None,
        rotation: Rotation | None,
        *,
        num_read: int | None,
    ) -> None:
        super().__init__()
        self.num_read, self.num_heads = num_read, config.num_heads
        self.cos: Tensor | None
        self.sin: Tensor | None
        self.register_buffer("cos", None if rotation is None else rotation.cos.clone())
        self.register_buffer("sin", None if rotation is None else rotation.sin.clone())
        self.in_pairs = rotation is not None and rotation.in_pairs
        self.relative_keys: Tensor | None
        self.register_buffer("relative_keys", relative_keys)
        self.logit_bias: Tensor | None
        self.register_buffer("logit_bias", logit_bias)
        self.norm_1, self.norm_2 = block.norm_1, block.norm_2
        attention = block.attention
        self.q_norm, self.k_norm = attention.q_norm, attention.k_norm
        D = config.width
        scale = (D // config.num_heads) ** -0.5 if attention.scale is None else attention.scale
        # If queries are normalised, a scale in their weights would have no effect, so it is applied after the norm.
        self.scale = 1.0 if not config.qk_norm else scale
        weight = attention.to_qkv.weight.detach().clone()
        bias = fused_bias(attention.to_qkv)
        if not config.qk_norm:
            weight[:D] *= scale
            bias[:D] *= scale
        if num_read is None:
            self.to_qkv = linear(weight, bias)
        else:
            self.to_q, self.to_kv = linear(weight[:D], bias[:D]), linear(weight[D:], bias[D:])
        self.norm = attention.norm
        self.to_out = scaled(attention.to_out, block.scale_1)
        self.expand, self.activate = block.mlp.expand, block.mlp.activate
        self.contract = scaled(block.mlp.contract, block.scale_2)

    def attend(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return what attention adds to tokens (B, T, D), or to the (B, R, D) that are read, and its weights."""
        D = tokens.shape[-1]
        normed = self.norm_1(tokens)
        if self.num_read is None:
            # Slices, not chunks: with chunks, ExecuTorch would make the example's batch size a constant.
            qkv = self.to_qkv(normed)
            q, k, v = qkv[..., :D], qkv[..., D : 2 * D], qkv[..., 2 * D :]  # each (B, T, D)
        else:
            q = self.to_q(normed[:, : self.num_read])
            kv = self.to_kv(normed)
            k, v = kv[..., :D], kv[..., D:]
        mixed, weights = self.mix(q, k, v)
        return self.to_out(self.norm(mixed)), weights

    def transform(self, tokens: Tensor) -> Tensor:
        """Return what the MLP adds to tokens (B, R, D)."""
        return self.contract(self.activate(self.expand(self.norm_2(tokens))))

    def turned(self, values: Tensor) -> Tensor:
        """Rotate queries or keys (B, H, *, K) by the rotary positions, if the model has them."""
        if self.cos is None or self.sin is None:
            return values
        return Rotation(self.cos, self.sin, self.in_pairs).turned(values)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Attend from q (B, R, D), which holds the scale already, to k and v (B, T, D); return the weights too."""
        B, R, D = q.shape
        q, k, v = (
            part.view(B, part.shape[1], self.num_heads, -1).transpose(1, 2) for part in (q, k, v)
        )  # (B, H, *, K)
        q, k = self.turned(self.q_norm(q)), self.turned(self.k_norm(k))
        if self.scale != 1.0:
            q = q * self.scale
        logits = q @ k.transpose(-2, -1)  # (B, H, R, T)
        if self.relative_keys is not None:
            logits = logits + relative_logits(q, self.relative_keys)
        if self.logit_bias is not None:
            logits = logits + self.logit_bias[:, :, :R]
        weights = logits.softmax(dim=-1)
        return (weights @ v).transpose(1, 2).reshape(B, R, D), weights


class FixedConv2d(nn.Conv2d):
    """A convolution whose kernel was standardised once, padded (before, after) on both axes."""

    def __init__(self, source: StandardisedConv2d) -> None:
        super().__init__(
            source.in_channels,
            source.out_channels,
            source.kernel_size,  # type: ignore[arg-type]
            stride=source.stride,  # type: ignore[arg-type]
            padding=source.padding,  # type: ignore[arg-type]
            bias=False,
        )
        self.weight = nn.Parameter(source.standardised_weight().detach())
        total = max(self.kernel_size[0] - self.stride[0], 0) if isinstance(source, SameConv2d) else 0
        self.around = (total // 2, total - total // 2) * 2

    def forward(self, hidden: Tensor) -> Tensor:
        """Pad as TensorFlow's SAME does where the source did, and convolve."""
        return super().forward(F.pad(hidden, self.around) if any(self.around) else hidden)


def with_fixed_kernels(module: nn.Module) -> nn.Module:
    """Return a copy of `module` that convolves with kernels standardised once."""
    if isinstance(module, StandardisedConv2d):
        return FixedConv2d(module)
    module = copy.deepcopy(module)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, StandardisedConv2d):
                setattr(parent, name, FixedConv2d(child))
    return module


def added_positions(model: ViT, *, layer: int) -> Tensor | None:
    """Return what a layer adds to its tokens before it begins, (1, T, D), or None."""
    config = model.config
    if config.position_placement == "stem" or config.positions in ("none", *NO_TABLE):
        return None
    zeros = torch.zeros(1, config.num_tokens, config.width)
    with torch.no_grad():
        return model.add_positions(zeros, config.grid_size, layer=layer)


def relative_keys(model: ViT, *, layer: int) -> Tensor | None:
    """Return a layer's keys of offsets, the largest first, (H, K, 2 T - 1), or None."""
    config = model.config
    if config.positions != "relative":
        return None
    table = model.positions[layer if config.position_placement == "every_layer" else 0]
    with torch.no_grad():
        keys = table(config.num_tokens)  # offset -(T - 1) first
    return keys.flip(0).view(keys.shape[0], config.num_heads, -1).permute(1, 2, 0).contiguous()


def logit_bias(model: ViT, *, layer: int) -> Tensor | None:
    """Return what a layer adds to its logits for the model's own grid, (1, H, T, T), or None."""
    config = model.config
    if config.attention == "axial":  # minus infinity outside the lines
        return axis_of(layer, config.grid_size).mask(device=torch.device("cpu"))[None, None]
    if config.positions != "relative_bias":
        return None
    table = model.positions[layer if config.position_placement == "every_layer" else 0]
    with torch.no_grad():
        return table(config.grid_size).values.clone()


def relative_logits(q: Tensor, keys: Tensor) -> Tensor:
    """Return q (B, H, R, K) times the keys of the offsets from each query to each key: (B, H, R, T).

    Row i of the product begins T - 1 - i places too early. Flattening it, dropping the first T - 1 values and
    reshaping to rows shorter by one aligns every row: a view instead of a gather.
    """
    B, H, R, _ = q.shape
    offsets = keys.shape[-1]  # 2 T - 1
    T = (offsets + 1) // 2
    line = F.pad((q @ keys).flatten(2), (0, T))  # (B, H, R x (2 T - 1) + T)
    line = line[:, :, T - 1 : T - 1 + R * (offsets - 1)]
    return line.reshape(B, H, R, offsets - 1)[..., :T]


def projection(model: ViT) -> nn.Linear:
    """Turn the patch projection into a dense layer; the fixed batch norm after it is multiplied in."""
    weight, bias = model.patch_projection.weight.flatten(1), model.patch_projection.bias
    norm = model.patch_norm
    if isinstance(norm, nn.BatchNorm1d):
        assert norm.running_mean is not None and norm.running_var is not None and bias is not None
        gain = norm.weight * (norm.running_var + norm.eps).rsqrt()
        weight, bias = weight * gain[:, None], (bias - norm.running_mean) * gain + norm.bias
    return linear(weight, bias)


def fused_bias(to_qkv: nn.Linear) -> Tensor:
    """Return the bias of queries, keys and values; zeros without one."""
    bias: Tensor | None = to_qkv.effective_bias() if isinstance(to_qkv, UnbiasedKeys) else to_qkv.bias
    return torch.zeros(to_qkv.out_features) if bias is None else bias.detach().clone()


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Build a dense layer from tensors."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone())
    return made


def scaled(layer: nn.Linear, scale: nn.Module) -> nn.Linear:
    """Multiply the gains of LayerScale into the layer before them."""
    if not isinstance(scale, LayerScale):
        return layer
    return linear(layer.weight * scale.gain[:, None], layer.bias * scale.gain)
