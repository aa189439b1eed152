"""The second teacher's network, against written-out convolutions."""

import pytest
import torch
import torch.nn.functional as F
from lite import Lite, PaddedConv, folded
from torch import Tensor, nn

# Exact in fp32 but for the order of additions.
TOLERANCE = 1e-5


def norm(width: int, generator: torch.Generator) -> dict[str, Tensor]:
    draw = torch.rand(4, width, generator=generator) + 0.5
    return dict(zip(("weight", "bias", "running_mean", "running_var"), draw, strict=True))


def tensors_of(stages: list[tuple[int, int]], *, stem: int, classes: int) -> dict[str, Tensor]:
    """Return random weights of a network with one entry of `stages` per block: its width and its kernel."""
    generator = torch.Generator().manual_seed(0)
    tensors, before = {"_conv_stem.weight": torch.randn(stem, 3, 3, 3, generator=generator)}, stem
    parts = {"_bn0": stem}
    for number, (width, kernel) in enumerate(stages):
        name, wide = f"_blocks.{number}", before if number == 0 else 2 * before
        if number:
            tensors[f"{name}._expand_conv.weight"] = torch.randn(wide, before, 1, 1, generator=generator)
            parts[f"{name}._bn0"] = wide
        tensors[f"{name}._depthwise_conv.weight"] = torch.randn(wide, 1, kernel, kernel, generator=generator)
        tensors[f"{name}._project_conv.weight"] = torch.randn(width, wide, 1, 1, generator=generator)
        parts |= {f"{name}._bn1": wide, f"{name}._bn2": width}
        before = width
    tensors["_conv_head.weight"] = torch.randn(24, before, 1, 1, generator=generator)
    tensors["_fc.weight"] = torch.randn(classes, 24, generator=generator)
    tensors["_fc.bias"] = torch.randn(classes, generator=generator)
    for name, width in (parts | {"_bn1": 24}).items():
        tensors |= {f"{name}.{key}": value for key, value in norm(width, generator).items()}
    return tensors


@pytest.mark.parametrize(("side", "before", "after"), [(6, 0, 1), (7, 1, 1)])
def test_an_odd_pixel_of_padding_is_on_the_right_and_below(side: int, before: int, after: int) -> None:
    layer = PaddedConv(1, 1, 3, 2)
    pixels = torch.randn(1, 1, side, side)
    padded = F.pad(pixels, (before, after, before, after))
    expected = F.conv2d(padded, layer.weight, layer.bias, stride=2)
    torch.testing.assert_close(layer(pixels), expected, atol=TOLERANCE, rtol=0)
    assert expected.shape[-1] == -(-side // 2)


def test_batch_norm_is_part_of_the_convolution() -> None:
    generator = torch.Generator().manual_seed(1)
    values = norm(5, generator)
    tensors = {"conv.weight": torch.randn(5, 4, 3, 3, generator=generator)}
    tensors |= {f"norm.{name}": value for name, value in values.items()}
    pixels = torch.randn(2, 4, 8, 8, generator=generator)
    apart = nn.BatchNorm2d(5, eps=1e-3).eval()
    apart.load_state_dict(values, strict=False)
    expected = apart(F.conv2d(F.pad(pixels, (1, 1, 1, 1)), tensors["conv.weight"]))
    torch.testing.assert_close(
        folded(tensors, "conv", "norm", stride=1)(pixels), expected, atol=1e-4, rtol=1e-4
    )


def test_a_new_width_begins_a_stage_and_an_equal_one_adds_a_residual() -> None:
    network = Lite(tensors_of([(8, 3), (12, 3), (12, 5)], stem=8, classes=10))
    strides = [block.convolve.stride[0] for block in network.blocks]
    assert strides == [1, 2, 1]
    assert [block.has_residual for block in network.blocks] == [True, False, True]
    assert network(torch.rand(2, 3, 32, 32) * 255).shape == (2, 10)
