"""PVT, PVT v2 and PCPVT: published sizes, timm's logits, a written-out PVT, and files of other programs."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

import vitrine
from tests.oracles import import_timm
from vitrine.checkpoints.converting import convert
from vitrine.errors import CheckpointError
from vitrine.models import Model, build, configure, create_model
from vitrine.models.cost import cost_of
from vitrine.models.pyramid import PatchEmbedding

# Parameters, and multiply-adds in millions at 224 pixels, as the official code has them.
PUBLISHED = {
    "pvt_tiny": (13_229_288, 1933),
    "pvt_small": (24_485_864, 3816),
    "pvt_medium": (44_208_104, 6659),
    "pvt_large": (61_369_320, 9814),
    "pvt_v2_b0": (3_666_760, 566),
    "pvt_v2_b1": (14_009_000, 2108),
    "pvt_v2_b2": (25_362_856, 4027),
    "pvt_v2_b2_li": (22_553_512, 3889),
    "pvt_v2_b3": (45_238_696, 6897),
    "pvt_v2_b4": (62_556_072, 10101),
    "pvt_v2_b5": (81_956_008, 11717),
    "pcpvt_small_v0": (24_106_216, 3810),
    "twins_pcpvt_base": (43_828_456, 6653),
    "pcpvt_large_v0": (60_989_672, 9808),
}
SMALL = {
    "widths": (16, 32, 40, 64),
    "depths": (1, 2, 1, 2),
    "num_heads": (1, 2, 5, 8),
    "mlp_ratios": (4, 4, 2, 2),
    "num_classes": 7,
    "image_size": 64,
}
# Summation order moves logits of order one by less than this; a wrong epsilon by 2e-5 or more.
TOLERANCE = 5e-6


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_multiply_adds_are_the_published_ones(name: str) -> None:
    params, mega = PUBLISHED[name]
    config = configure(name)
    with torch.device("meta"):
        model = build(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == params
    assert cost_of(config).params == params
    assert cost_of(config).macs / 1e6 == pytest.approx(mega, abs=0.6)


def spread(model: Model) -> Model:
    """Give every parameter values that matter: fresh norms, biases and tables hide mistakes."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if parameter.ndim < 2 or "positions" in name else parameter[0].numel() ** -0.5
            parameter.copy_(torch.randn_like(parameter) * scale + (1.0 if "norm" in name else 0.0))
    return model.eval()


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("pvt_v2_b0", {}),
        ("pvt_v2_b2_li", {"linear": True}),
        ("pcpvt_small_v0", {}),
    ],
)
@pytest.mark.parametrize("size", [64, (64, 96)])
def test_logits_equal_those_of_timm(
    name: str, theirs: dict[str, bool], size: int | tuple[int, int], tmp_path: Path
) -> None:
    model = spread(create_model(name, **{**SMALL, "image_size": size}))  # type: ignore[arg-type]
    vitrine.save(model, tmp_path / "timm", to="timm")
    config = model.config
    library = (
        import_timm()
        .create_model(
            "pvt_v2_b2" if name.startswith("pvt") else "twins_pcpvt_small",
            num_classes=7,
            embed_dims=config.widths,  # type: ignore[attr-defined]
            depths=config.depths,  # type: ignore[attr-defined]
            num_heads=config.num_heads,  # type: ignore[attr-defined]
            mlp_ratios=config.mlp_ratios,  # type: ignore[attr-defined]
            **({} if name.startswith("pvt") else {"img_size": config.image_size}),
            **theirs,
        )
        .eval()
    )
    library.load_state_dict(load_file(tmp_path / "timm" / "model.safetensors"))
    images = torch.randn(2, 3, *config.image_size)
    with torch.inference_mode():
        expected, found = library(images), model(images)
    assert found.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def pvt_v1(
    weights: dict[str, Tensor], images: Tensor, *, depths: tuple[int, ...], heads: tuple[int, ...]
) -> Tensor:
    """Compute a PVT from the official names, written out operation by operation."""

    def norm(tokens: Tensor, name: str, eps: float) -> Tensor:
        mean, variance = tokens.mean(-1, keepdim=True), tokens.var(-1, unbiased=False, keepdim=True)
        return (tokens - mean) / (variance + eps) ** 0.5 * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def dense(tokens: Tensor, name: str) -> Tensor:
        return tokens @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def convolved(maps: Tensor, name: str) -> Tensor:
        """Cut non-overlapping patches and multiply each by the kernel; what is left over is dropped."""
        kernel = weights[f"{name}.weight"]
        side = kernel.shape[-1]
        rows, columns = maps.shape[2] // side, maps.shape[3] // side
        patches = (
            maps.reshape(*maps.shape[:2], rows, side, columns, side).permute(0, 2, 4, 1, 3, 5).flatten(3)
        )
        return patches @ kernel.flatten(1).T + weights[f"{name}.bias"]  # (B, rows, columns, D)

    maps = images
    for stage in range(4):
        embedded = convolved(maps, f"patch_embed{stage + 1}.proj")
        rows, columns, D = embedded.shape[1:]
        tokens = norm(embedded.flatten(1, 2), f"patch_embed{stage + 1}.norm", 1e-5)
        if stage == 3:
            tokens = torch.cat([weights["cls_token"].expand(len(tokens), -1, -1), tokens], dim=1)
        tokens = tokens + weights[f"pos_embed{stage + 1}"]
        for number in range(depths[stage]):
            block = f"block{stage + 1}.{number}"
            normed = norm(tokens, f"{block}.norm1", 1e-6)
            source = normed
            if f"{block}.attn.sr.weight" in weights:
                on_map = normed.transpose(1, 2).reshape(len(normed), D, rows, columns)
                source = norm(convolved(on_map, f"{block}.attn.sr").flatten(1, 2), f"{block}.attn.norm", 1e-5)
            q = dense(normed, f"{block}.attn.q")
            k, v = dense(source, f"{block}.attn.kv").chunk(2, dim=-1)
            width = D // heads[stage]
            mixed = []
            for head in range(heads[stage]):
                part = slice(head * width, (head + 1) * width)
                logits = q[..., part] @ k[..., part].transpose(1, 2) / width**0.5
                mixed.append(logits.softmax(-1) @ v[..., part])
            tokens = tokens + dense(torch.cat(mixed, dim=-1), f"{block}.attn.proj")
            hidden = dense(norm(tokens, f"{block}.norm2", 1e-6), f"{block}.mlp.fc1")
            hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
            tokens = tokens + dense(hidden, f"{block}.mlp.fc2")
        maps = tokens.transpose(1, 2).reshape(len(tokens), D, rows, columns) if stage < 3 else maps
    return dense(norm(tokens, "norm", 1e-6)[:, 0], "head")


def test_pvt_equals_the_written_out_reference(tmp_path: Path) -> None:
    model = spread(create_model("pvt_tiny", **SMALL)).double()  # type: ignore[arg-type]
    vitrine.save(model, tmp_path / "official", to="official")
    weights = load_file(tmp_path / "official" / "model.safetensors")
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    with torch.inference_mode():
        expected = pvt_v1(weights, images, depths=(1, 2, 1, 2), heads=(1, 2, 5, 8))
        found = model(images)
    assert weights["head.weight"].dtype == torch.float64 and found.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_position_tables_of_every_stage_are_resampled_bilinearly(tmp_path: Path) -> None:
    model = spread(create_model("pvt_tiny", **SMALL))  # type: ignore[arg-type]
    vitrine.save(model, tmp_path / "model")
    larger = vitrine.load(tmp_path / "model", image_size=(96, 128))
    old, new = model.state_dict(), larger.model.state_dict()
    for stage, side in enumerate((16, 8, 4, 2)):
        name, slots = f"stages.{stage}.positions.table", int(stage == 3)
        maps = old[name][:, slots:].transpose(1, 2).reshape(1, -1, side, side)
        expected = F.interpolate(maps, size=(side * 3 // 2, side * 2), mode="bilinear", align_corners=False)
        torch.testing.assert_close(new[name][:, slots:], expected.flatten(2).transpose(1, 2))
        assert torch.equal(new[name][:, :slots], old[name][:, :slots])
    images = torch.randn(1, 3, 96, 128)
    with torch.inference_mode():  # a model also resamples at the time of the call
        torch.testing.assert_close(larger.model(images), model(images), rtol=0, atol=1e-5)
    assert larger.notes


@pytest.mark.parametrize("name", ["pvt_tiny", "pvt_v2_b0", "pvt_v2_b2_li", "pcpvt_small_v0"])
@pytest.mark.parametrize("form", ["pth", "pth.tar", "safetensors", "npz"])
def test_official_files_of_every_form_load_with_the_same_logits(name: str, form: str, tmp_path: Path) -> None:
    model = spread(create_model(name, **SMALL))  # type: ignore[arg-type]
    vitrine.save(model, tmp_path / "official", to="official")
    weights = load_file(tmp_path / "official" / "model.safetensors")
    path = tmp_path / f"theirs.{form}"
    if form == "pth":
        torch.save({"model": weights, "epoch": 3}, path)
    elif form == "pth.tar":
        spoilt = {f"module.{key}": value * 0 for key, value in weights.items()}
        averaged = {f"module.{key}": value for key, value in weights.items()}
        torch.save({"state_dict": spoilt, "state_dict_ema": averaged, "arch": name}, path)
    elif form == "npz":
        np.savez(path, **{key: value.numpy() for key, value in weights.items()})
    else:
        save_file(weights, path)
    loaded = vitrine.load(path, image_size=64, options={"num_heads": (1, 2, 5, 8)})
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(loaded.model(images), model(images), rtol=0, atol=0)
    assert loaded.model.config == model.config


@pytest.mark.parametrize(
    ("name", "to"), [("pvt_tiny", "official"), ("pvt_v2_b0", "timm"), ("pcpvt_small_v0", "timm")]
)
def test_conversion_there_and_back_is_proved(name: str, to: str, tmp_path: Path) -> None:
    model = spread(create_model(name, **{**SMALL, "num_heads": (2, 2, 4, 4)}))  # type: ignore[arg-type]
    vitrine.save(model, tmp_path / "model")
    there = convert(tmp_path / "model", tmp_path / "there.safetensors", to=to)
    assert there.exit_code == 0 and there.num_identical == len(there.tensors)
    if to == "timm":
        assert any(check.against.startswith("timm") and check.agrees for check in there.parity)
    back = convert(tmp_path / "there.safetensors", tmp_path / "back", to="vitrine")
    assert back.exit_code == 0
    assert vitrine.load(tmp_path / "back").model.config == model.config


def test_a_file_whose_widths_fit_no_published_heads_asks_for_them(tmp_path: Path) -> None:
    odd = {**SMALL, "widths": (16, 32, 48, 64), "num_heads": (1, 2, 4, 8)}
    model = create_model("pvt_v2_b0", **odd)  # type: ignore[arg-type]
    vitrine.save(model, tmp_path / "official", to="official")
    weights = load_file(tmp_path / "official" / "model.safetensors")
    save_file(weights, tmp_path / "bare.safetensors")
    with pytest.raises(CheckpointError) as caught:
        vitrine.load(tmp_path / "bare.safetensors")
    assert caught.value.advice[0].option == "options"
    loaded = vitrine.load(tmp_path / "bare.safetensors", options={"num_heads": [1, 2, 4, 8]})
    assert loaded.model.config.num_heads == (1, 2, 4, 8)  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError):
        vitrine.load(tmp_path / "bare.safetensors", options={"num_hats": 3})


def test_the_gradient_of_an_embedding_of_one_cell_is_right_in_bf16() -> None:
    torch.manual_seed(0)
    embedding = PatchEmbedding(16, 24, kernel_size=3, stride=2, padding=1)
    maps = torch.randn(32, 16, 1, 1)
    gradients = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            tokens, grid = embedding(maps)
        embedding.zero_grad()
        (tokens.float() ** 3).mean().backward()
        assert grid == (1, 1) and embedding.projection.weight.grad is not None
        gradients.append(embedding.projection.weight.grad.clone())
    # bf16 has 8 bits: products of two rounded numbers are right to about a percent.
    assert (gradients[0] - gradients[1]).norm() < 0.02 * gradients[1].norm()
    torch.testing.assert_close(tokens, embedding.norm(embedding.projection(maps).flatten(2).transpose(1, 2)))
