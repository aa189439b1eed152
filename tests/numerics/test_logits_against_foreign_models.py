"""Logits equal those of independent implementations: timm, transformers, and formulas written out in float64.

Tolerance 1e-5 on logits of order one: float32 carries 6e-8 a rounding, some hundred roundings deep.
"""

import math

import pytest
import torch
from oracles import import_timm
from torch import Tensor, nn

from vitrine.models import BiT, ViT, create_model

TOLERANCE = 1e-5


def stir(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    model.eval()


def copy_linear(ours: nn.Module, theirs: nn.Module) -> None:
    ours.weight.data.copy_(theirs.weight.data)
    if getattr(theirs, "bias", None) is not None:
        ours.bias.data.copy_(theirs.bias.data)


def copy_timm_vit(ours: ViT, theirs: nn.Module) -> None:
    assert ours.class_token is not None
    ours.class_token.data.copy_(theirs.cls_token.data)
    ours.positions[0].table.data.copy_(theirs.pos_embed.data)
    copy_linear(ours.patch_projection, theirs.patch_embed.proj)
    for block, other in zip(ours.blocks, theirs.blocks, strict=True):
        copy_linear(block.norm_1, other.norm1)
        copy_linear(block.attention.to_qkv, other.attn.qkv)
        copy_linear(block.attention.to_out, other.attn.proj)
        copy_linear(block.norm_2, other.norm2)
        copy_linear(block.mlp.expand, other.mlp.fc1)
        copy_linear(block.mlp.contract, other.mlp.fc2)
    copy_linear(ours.norm, theirs.norm)
    copy_linear(ours.head, theirs.head)


def largest_difference(ours: nn.Module, theirs: nn.Module, *, size: tuple[int, int]) -> float:
    images = torch.randn(3, 3, *size, generator=torch.Generator().manual_seed(5))
    images = images.to(next(ours.parameters()).dtype)
    with torch.no_grad():
        answer = theirs(images)
        return float((ours.eval()(images) - getattr(answer, "logits", answer)).abs().max())


@pytest.mark.parametrize("gelu", ["tanh", "erf"])
def test_vit_logits_equal_timms(gelu: str) -> None:
    timm = import_timm()
    act = "gelu_tanh" if gelu == "tanh" else "gelu"
    theirs = timm.create_model(
        "vit_small_patch16_224", img_size=(64, 96), depth=4, num_classes=7, act_layer=act
    )
    stir(theirs)
    ours = create_model("ViT-S/16", image_size=(64, 96), depth=4, num_classes=7, gelu=gelu)
    copy_timm_vit(ours, theirs)
    assert largest_difference(ours, theirs, size=(64, 96)) < TOLERANCE


def test_vit_logits_equal_those_of_transformers() -> None:
    from transformers import ViTConfig as TheirConfig
    from transformers import ViTForImageClassification

    theirs = ViTForImageClassification(
        TheirConfig(
            hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, image_size=48,
            patch_size=16, num_labels=7, layer_norm_eps=1e-12,
        )
    )  # fmt: skip
    stir(theirs)
    ours = create_model(
        "ViT", width=64, depth=3, num_heads=4, mlp_width=128, image_size=48, patch_size=16, num_classes=7,
        gelu="erf", norm_eps=1e-12,
    )  # fmt: skip
    inside = theirs.vit
    ours.class_token.data.copy_(inside.embeddings.cls_token.data)
    ours.positions[0].table.data.copy_(inside.embeddings.position_embeddings.data)
    copy_linear(ours.patch_projection, inside.embeddings.patch_embeddings.projection)
    state = theirs.state_dict()

    def tensor(layer: int, *names: str) -> Tensor:
        # The names of version 4 and those of version 5.
        for name in names:
            for prefix in (f"vit.encoder.layer.{layer}.", f"vit.layers.{layer}."):
                if prefix + name in state:
                    return state[prefix + name]
        raise KeyError(names)

    for i, block in enumerate(ours.blocks):
        for kind in ("weight", "bias"):
            qkv = [
                tensor(i, f"attention.attention.{long}.{kind}", f"attention.{short}_proj.{kind}")
                for long, short in (("query", "q"), ("key", "k"), ("value", "v"))
            ]
            getattr(block.attention.to_qkv, kind).data.copy_(torch.cat(qkv))
            for layer, names in (
                (block.attention.to_out, ("attention.output.dense", "attention.o_proj")),
                (block.mlp.expand, ("intermediate.dense", "mlp.fc1")),
                (block.mlp.contract, ("output.dense", "mlp.fc2")),
                (block.norm_1, ("layernorm_before",)),
                (block.norm_2, ("layernorm_after",)),
            ):
                getattr(layer, kind).data.copy_(tensor(i, *(f"{name}.{kind}" for name in names)))
    copy_linear(ours.norm, inside.layernorm)
    copy_linear(ours.head, theirs.classifier)
    assert largest_difference(ours, theirs, size=(48, 48)) < TOLERANCE


@pytest.mark.parametrize(("name", "timms"), [("R26+ViT-S/32", "vit_small_r26_s32_224")])
def test_hybrid_logits_equal_timms(name: str, timms: str) -> None:
    timm = import_timm()
    theirs = timm.create_model(timms, img_size=96, num_classes=7, depth=3, act_layer="gelu_tanh")
    stir(theirs)
    ours = create_model(name, image_size=96, num_classes=7, depth=3)
    stem = ours.config.stem
    for conv in ours.stem.modules():  # timm's epsilons
        if hasattr(conv, "std_eps"):
            conv.std_eps, conv.variance_eps = 0.0, 1e-8
        if isinstance(conv, nn.GroupNorm):
            conv.eps = 1e-5
    assert stem is not None
    backbone = theirs.patch_embed.backbone
    ours.stem.root_conv.weight.data.copy_(backbone.stem.conv.weight)
    copy_linear(ours.stem.root_norm, backbone.stem.norm)
    for stage, other in zip(ours.stem.stages, backbone.stages, strict=True):
        for unit, block in zip(stage, other.blocks, strict=True):
            for i in (1, 2, 3):
                getattr(unit, f"conv_{i}").weight.data.copy_(getattr(block, f"conv{i}").weight)
                copy_linear(getattr(unit, f"norm_{i}"), getattr(block, f"norm{i}"))
            if block.downsample is not None:
                unit.shortcut[0].weight.data.copy_(block.downsample.conv.weight)
                copy_linear(unit.shortcut[1], block.downsample.norm)
    copy_timm_vit(ours, theirs)
    assert largest_difference(ours, theirs, size=(96, 96)) < TOLERANCE


def test_bit_logits_equal_timms() -> None:
    timm = import_timm()
    theirs = timm.create_model("resnetv2_50x1_bit", num_classes=7)
    stir(theirs)
    ours = create_model("BiT-R50x1", image_size=64, num_classes=7)
    assert isinstance(ours, BiT)
    for conv in ours.modules():
        if hasattr(conv, "variance_eps"):
            conv.variance_eps = 1e-8  # timm's
    ours.root_conv.weight.data.copy_(theirs.stem.conv.weight)
    for stage, other in zip(ours.stages, theirs.stages, strict=True):
        for unit, block in zip(stage, other.blocks, strict=True):
            for i in (1, 2, 3):
                getattr(unit, f"conv_{i}").weight.data.copy_(getattr(block, f"conv{i}").weight)
                copy_linear(getattr(unit, f"norm_{i}"), getattr(block, f"norm{i}"))
            if block.downsample is not None:
                unit.projection.weight.data.copy_(block.downsample.conv.weight)
    copy_linear(ours.norm, theirs.norm)
    ours.head.weight.data.copy_(theirs.head.fc.weight.flatten(1))
    ours.head.bias.data.copy_(theirs.head.fc.bias)
    # A ResNet is fifty layers deep: in float32 the two differ by 2e-5 from rounding alone, so compare in float64.
    assert largest_difference(ours.double(), theirs.double(), size=(64, 64)) < 1e-9


def test_logits_equal_the_equations_of_the_paper_written_out_in_float64() -> None:
    torch.manual_seed(0)
    ours = create_model(
        "ViT", width=24, depth=2, num_heads=3, mlp_width=40, patch_size=(4, 2), image_size=(8, 6), channels=2,
        num_classes=5, representation_width=16,
    ).double()  # fmt: skip
    stir(ours)
    images = torch.randn(2, 2, 8, 6, dtype=torch.float64)
    P = dict(ours.named_parameters())

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return (
            centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * P[f"{name}.weight"]
            + P[f"{name}.bias"]
        )

    def dense(x: Tensor, name: str) -> Tensor:
        return x @ P[f"{name}.weight"].T + P[f"{name}.bias"]

    def gelu(x: Tensor) -> Tensor:
        return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    patches = torch.stack(
        [images[:, :, r : r + 4, c : c + 2].flatten(1) for r in (0, 4) for c in (0, 2, 4)], dim=1
    )  # (B, N, C P P), raster order
    kernel = P["patch_projection.weight"].flatten(1)
    z = torch.cat([P["class_token"].expand(2, 1, 24), patches @ kernel.T + P["patch_projection.bias"]], 1)
    z = z + P["positions.0.table"]  # eq. 1
    for layer in range(2):
        b = f"blocks.{layer}"
        q, k, v = dense(norm(z, f"{b}.norm_1"), f"{b}.attention.to_qkv").chunk(3, dim=-1)  # eq. 5
        heads = []
        for h in range(3):
            part = slice(8 * h, 8 * h + 8)
            A = (q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(8)).exp()
            heads.append(A / A.sum(-1, keepdim=True) @ v[..., part])  # eqs. 6 and 7
        z = z + dense(torch.cat(heads, -1), f"{b}.attention.to_out")  # eqs. 8 and 2
        z = z + dense(gelu(dense(norm(z, f"{b}.norm_2"), f"{b}.mlp.expand")), f"{b}.mlp.contract")  # eq. 3
    y = norm(z[:, 0], "norm")  # eq. 4
    logits = dense(torch.tanh(dense(y, "representation")), "head")
    torch.testing.assert_close(ours(images), logits, rtol=0, atol=1e-12)


def test_relative_attention_equals_the_formula_written_out_in_float64() -> None:
    torch.manual_seed(0)
    ours = create_model(
        "ViT", width=8, depth=1, num_heads=2, mlp_width=8, patch_size=4, image_size=8, num_classes=3,
        positions="relative", position_placement="every_layer",
    ).double()  # fmt: skip
    stir(ours)
    images = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    (_, weights) = next(iter(ours.attention(images)))
    patches, grid = ours.embed_patches(images)
    tokens = ours.assemble(patches, grid)
    block = ours.blocks[0]
    q, k, _ = block.attention.project(block.norm_1(tokens))
    table = ours.positions[0].table.view(9, 2, 4)  # offsets -4 ... 4, heads, channels
    for head in range(2):
        for query in range(5):
            logits = torch.stack(
                [q[0, head, query] @ (k[0, head, key] + table[query - key + 4, head]) / 2 for key in range(5)]
            )
            torch.testing.assert_close(weights[0, head, query], logits.softmax(0), rtol=0, atol=1e-12)
