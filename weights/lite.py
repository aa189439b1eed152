"""EfficientNet-Lite2, the second teacher: real logits of ImageNet's 1,000 classes, read from a file of its weights.

The network is B2 of arXiv:1905.11946 without squeeze-and-excitation and with ReLU6. Widths and numbers of blocks are
read off the tensors; only what tensors do not show stands here: strides, padding as in TensorFlow, and the input.

Shapes: B images, C channels, 260 x 260 pixels from 0 to 255.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 260
# (x - 127) / 128, as its authors trained it.
CENTRE, SPREAD = 127.0, 128.0
# Stride of the first block of each of the seven stages (Table 1 of the paper).
STRIDES = (1, 2, 2, 2, 1, 2, 1)
EPSILON = 1e-3


class Lite(nn.Module):
    """The network as folded convolutions: batch norm is part of the weights."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.stem = folded(tensors, "_conv_stem", "_bn0", stride=2)
        self.blocks = nn.ModuleList(blocks(tensors))
        self.top = folded(tensors, "_conv_head", "_bn1", stride=1)
        weight = tensors["_fc.weight"]
        self.head = nn.Linear(weight.shape[1], weight.shape[0])
        self.head.load_state_dict({"weight": weight, "bias": tensors["_fc.bias"]})
        self.eval().requires_grad_(False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels (B, 3, 260, 260) from 0 to 255 to logits (B, 1000)."""
        x = (pixels - CENTRE) / SPREAD
        x = F.relu6(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(F.relu6(self.top(x)).mean((2, 3)))


class Block(nn.Module):
    """An inverted bottleneck: widen, convolve each channel, narrow; with a residual where shapes agree."""

    def __init__(self, tensors: dict[str, Tensor], name: str, *, stride: int) -> None:
        super().__init__()
        widens = f"{name}._expand_conv.weight" in tensors
        self.widen = folded(tensors, f"{name}._expand_conv", f"{name}._bn0", stride=1) if widens else None
        self.convolve = folded(tensors, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride)
        self.narrow = folded(tensors, f"{name}._project_conv", f"{name}._bn2", stride=1)
        first = self.widen or self.convolve
        self.has_residual = (
            stride == 1 and first.weight.shape[1 if self.widen else 0] == self.narrow.weight.shape[0]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H', W')."""
        wide = x if self.widen is None else F.relu6(self.widen(x))
        y: Tensor = self.narrow(F.relu6(self.convolve(wide)))
        return x + y if self.has_residual else y


class PaddedConv(nn.Conv2d):
    """A convolution whose output has ceil(side / stride) pixels; an odd padding pixel is on the right and below."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H', W')."""
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        across, down = (
            max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in (x.shape[3], x.shape[2])
        )
        return super().forward(F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2)))


def folded(tensors: dict[str, Tensor], conv: str, norm: str, *, stride: int) -> PaddedConv:
    """Return a convolution with the batch norm that follows it multiplied into its weights."""
    weight = tensors[f"{conv}.weight"]
    scale = tensors[f"{norm}.weight"] / (tensors[f"{norm}.running_var"] + EPSILON).sqrt()
    bias = tensors[f"{norm}.bias"] - tensors[f"{norm}.running_mean"] * scale
    wide, each, kernel, _ = weight.shape
    is_depthwise = "_depthwise_conv" in conv
    layer = PaddedConv(
        wide if is_depthwise else each, wide, kernel, stride, groups=wide if is_depthwise else 1
    )
    layer.load_state_dict({"weight": weight * scale.view(-1, 1, 1, 1), "bias": bias})
    return layer


def blocks(tensors: dict[str, Tensor]) -> list[Block]:
    """Return all blocks. A new stage begins where the number of channels changes."""
    names = sorted({int(name.split(".")[1]) for name in tensors if name.startswith("_blocks.")})
    widths = [len(tensors[f"_blocks.{number}._project_conv.weight"]) for number in names]
    strides, before, built = iter(STRIDES), 0, []
    for number, width in zip(names, widths, strict=True):
        built.append(Block(tensors, f"_blocks.{number}", stride=1 if width == before else next(strides)))
        before = width
    return built


def read_lite(path: Path) -> Lite:
    """Read the network from a file of its weights."""
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    return Lite({name: tensor.float() for name, tensor in tensors.items()})
