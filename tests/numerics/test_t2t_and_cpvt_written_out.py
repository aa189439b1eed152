"""T2T-ViT and CPVT against their papers' and authors' formulas, written out with sums and slices in float64."""

import math

import pytest
import torch
from torch import Tensor

from vitrine.checkpoints.layouts.t2t import T2TLayout
from vitrine.models import ViT, create_model

Weights = dict[str, Tensor]


def stirred(model: ViT) -> ViT:
    """A model in float64 in which nothing is zero or one."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.double().eval()


def norm(x: Tensor, weights: Weights, name: str, *, eps: float) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / (variance + eps).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def dense(x: Tensor, weights: Weights, name: str) -> Tensor:
    product = x @ weights[f"{name}.weight"].T
    return product + weights[f"{name}.bias"] if f"{name}.bias" in weights else product


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def softmax(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum(dim=-1, keepdim=True)


def squares(images: Tensor, kernel: int, stride: int, padding: int) -> tuple[Tensor, int]:
    """Gather overlapping squares in raster order, the channel slowest; return the number of rows too."""
    B, C, height, width = images.shape
    padded = images.new_zeros(B, C, height + 2 * padding, width + 2 * padding)
    padded[:, :, padding : padding + height, padding : padding + width] = images
    rows, columns = height // stride, width // stride
    shifted = [
        padded[:, :, dy : dy + stride * rows : stride, dx : dx + stride * columns : stride]
        for dy in range(kernel)
        for dx in range(kernel)
    ]
    return torch.stack(shifted, dim=2).reshape(B, C * kernel**2, rows * columns).transpose(1, 2), rows


def token_transformer(x: Tensor, weights: Weights, name: str) -> Tensor:
    qkv = norm(x, weights, f"{name}.norm1", eps=1e-5) @ weights[f"{name}.attn.qkv.weight"].T
    width = qkv.shape[-1] // 3
    q, k, v = qkv[..., :width], qkv[..., width : 2 * width], qkv[..., 2 * width :]
    attention = softmax(q @ k.transpose(1, 2) * x.shape[-1] ** -0.5)  # the width that comes in
    y = v + dense(attention @ v, weights, f"{name}.attn.proj")
    hidden = gelu(dense(norm(y, weights, f"{name}.norm2", eps=1e-5), weights, f"{name}.mlp.fc1"))
    return y + dense(hidden, weights, f"{name}.mlp.fc2")


def token_performer(x: Tensor, weights: Weights, name: str) -> Tensor:
    kqv = dense(norm(x, weights, f"{name}.norm1", eps=1e-5), weights, f"{name}.kqv")
    width = kqv.shape[-1] // 3
    k, q, v = kqv[..., :width], kqv[..., width : 2 * width], kqv[..., 2 * width :]
    w = weights[f"{name}.w"]

    def phi(z: Tensor) -> Tensor:
        return torch.exp(z @ w.T - (z * z).sum(dim=-1, keepdim=True) / 2) / math.sqrt(w.shape[0])

    similarity = phi(q) @ phi(k).transpose(1, 2)  # every pair of tokens, as the linear form avoids
    mixed = similarity @ v / (similarity.sum(dim=-1, keepdim=True) + 1e-8)
    y = v + dense(mixed, weights, f"{name}.proj")
    hidden = gelu(dense(norm(y, weights, f"{name}.norm2", eps=1e-5), weights, f"{name}.mlp.0"))
    return y + dense(hidden, weights, f"{name}.mlp.2")


def block(x: Tensor, weights: Weights, name: str, *, num_heads: int, eps: float) -> Tensor:
    qkv = dense(norm(x, weights, f"{name}.norm1", eps=eps), weights, f"{name}.attn.qkv")
    width = x.shape[-1]
    head = width // num_heads
    mixed = torch.empty_like(x)
    for start in range(0, width, head):
        q, k, v = (qkv[..., part * width + start : part * width + start + head] for part in range(3))
        mixed[..., start : start + head] = softmax(q @ k.transpose(1, 2) / math.sqrt(head)) @ v
    x = x + dense(mixed, weights, f"{name}.attn.proj")
    hidden = gelu(dense(norm(x, weights, f"{name}.norm2", eps=eps), weights, f"{name}.mlp.fc1"))
    return x + dense(hidden, weights, f"{name}.mlp.fc2")


@pytest.mark.parametrize(
    ("name", "mix"), [("T2T-ViT-7", token_performer), ("T2T-ViT_t-14", token_transformer)]
)
def test_t2t_vit_equals_its_written_out_form_on_the_authors_names(name: str, mix) -> None:  # type: ignore[no-untyped-def]
    model = stirred(create_model(name, image_size=48, num_classes=7, depth=2))  # type: ignore[arg-type]
    state = model.state_dict()
    weights = {rule.theirs: rule.view.apply(state[rule.ours[0]]) for rule in T2TLayout().rules(model.config)}
    images = torch.randn(2, 3, 48, 48, dtype=torch.float64)

    x, rows = squares(images, 7, 4, 2)
    for layer in (1, 2):
        x = mix(x, weights, f"tokens_to_token.attention{layer}")
        x, rows = squares(x.transpose(1, 2).reshape(2, -1, rows, rows), 3, 2, 1)
    x = dense(x, weights, "tokens_to_token.project")
    x = torch.cat([weights["cls_token"].expand(2, -1, -1), x], dim=1) + weights["pos_embed"]
    for i in range(2):
        x = block(x, weights, f"blocks.{i}", num_heads=model.config.num_heads, eps=1e-5)
    logits = dense(norm(x, weights, "norm", eps=1e-5)[:, 0], weights, "head")

    assert (logits - model(images)).abs().max() < 1e-9


def test_positions_of_a_fresh_t2t_vit_are_the_authors_sinusoid_and_stay_fixed() -> None:
    model = create_model("T2T-ViT-7", image_size=32, num_classes=7, depth=1)
    table = model.positions[0].table  # type: ignore[union-attr,attr-defined,operator,index]
    assert not table.requires_grad
    for position in range(5):
        for channel in range(256):
            angle = position / 10000 ** (2 * (channel // 2) / 256)
            expected = math.cos(angle) if channel % 2 else math.sin(angle)
            assert abs(table[0, position, channel].item() - expected) < 1e-6


def test_random_features_of_a_fresh_performer_are_orthogonal_with_norm_sqrt_m() -> None:
    model = create_model("T2T-ViT-7", image_size=32, depth=1)
    for layer in model.stem.layers:  # type: ignore[union-attr]
        products = layer.features @ layer.features.T
        torch.testing.assert_close(products, 32 * torch.eye(32), rtol=0, atol=1e-4)
        assert not layer.features.requires_grad


def peg(x: Tensor, weights: Weights, name: str, *, grid: tuple[int, int], first: int) -> Tensor:
    """Each patch plus a weighted sum of its eight neighbours and itself; nothing beyond the border."""
    rows, columns = grid
    kernel, out = weights[f"{name}.mix.weight"], x.clone()
    for y in range(rows):
        for z in range(columns):
            total = weights[f"{name}.mix.bias"].clone()
            for dy in (-1, 0, 1):
                for dz in (-1, 0, 1):
                    if 0 <= y + dy < rows and 0 <= z + dz < columns:
                        near = x[:, first + (y + dy) * columns + z + dz]
                        total = total + kernel[:, 0, dy + 1, dz + 1] * near
            out[:, first + y * columns + z] += total
    return out


OURS = {
    "norm_1": "norm1",
    "norm_2": "norm2",
    "attention.to_qkv": "attn.qkv",
    "attention.to_out": "attn.proj",
    "mlp.expand": "mlp.fc1",
    "mlp.contract": "mlp.fc2",
}


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("CPVT-Ti", (0,)),
        ("CPVT-Ti-GAP", (0,)),
        ("CPVT-Ti-5PEG", (0, 1, 2, 3, 4)),
        ("CPVT-Ti-GAP-5PEG", (0, 1, 2, 3, 4)),
    ],
)
def test_cpvt_equals_its_written_out_form(name: str, after: tuple[int, ...]) -> None:
    depth = after[-1] + 2
    model = stirred(create_model(name, image_size=(32, 48), num_classes=7, depth=depth))  # type: ignore[arg-type]
    weights = model.state_dict()
    for ours, theirs in OURS.items():
        weights |= {key.replace(ours, theirs): value for key, value in weights.items() if ours in key}
    images = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    patches = images.reshape(2, 3, 2, 16, 3, 16).permute(0, 2, 4, 1, 3, 5).reshape(2, 6, -1)
    x = patches @ weights["patch_projection.weight"].flatten(1).T + weights["patch_projection.bias"]
    first = 0
    if "GAP" not in name:
        x, first = torch.cat([weights["class_token"].expand(2, -1, -1), x], dim=1), 1
    for i in range(depth):
        x = block(x, weights, f"blocks.{i}", num_heads=3, eps=1e-6)
        if i in after:
            x = peg(x, weights, f"positions.{after.index(i)}", grid=(2, 3), first=first)
    x = norm(x, weights, "norm", eps=1e-6)
    logits = dense(x.mean(dim=1) if "GAP" in name else x[:, 0], weights, "head")

    assert (logits - model(images)).abs().max() < 1e-9
