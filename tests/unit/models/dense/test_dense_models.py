"""Models that answer for every pixel: their shapes, their cost, their way to disk and back, windows."""

import dataclasses
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitrine.checkpoints import load, save
from vitrine.errors import ConfigError
from vitrine.models import ViTConfig, build
from vitrine.models.cost import cost_of
from vitrine.models.dense.config import (
    DenseConfig,
    EoMTConfig,
    LinearSegmenterConfig,
    SegmenterConfig,
    as_encoder,
)
from vitrine.models.dense.eomt import EoMT, QueryAnswers, TrainedEoMT, masked_block, masked_share
from vitrine.models.dense.windows import covering_size, most_likely, picture_scores, starts

VIT = as_encoder(
    ViTConfig(
        image_size=(32, 32), patch_size=(8, 8), width=32, depth=3, num_heads=4, mlp_width=48, layer_scale=0.1,
        num_registers=2,
    )
)  # fmt: skip
CONFIGS: dict[str, DenseConfig] = {
    "linear": LinearSegmenterConfig(vit=VIT, num_classes=5),
    "linear on three blocks": LinearSegmenterConfig(vit=VIT, num_classes=5, layers=(-3, 1, -1)),
    "mask transformer": SegmenterConfig(vit=VIT, num_classes=5, width=64),
    "eomt": EoMTConfig(vit=VIT, num_classes=5, num_queries=7, num_blocks=2),
    "eomt on rotary positions": EoMTConfig(
        vit=replace(VIT, positions="none", rotary="dinov3", mlp="swiglu", key_bias=False),
        num_classes=5,
        num_queries=7,
        num_blocks=2,
    ),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_scores_are_a_map_per_class_and_parameters_are_counted(config: DenseConfig) -> None:
    model = build(config).eval()
    scores = model(torch.randn(2, 3, 32, 48))
    assert scores.shape[:2] == (2, 5)
    assert scores.shape[2] * 48 == scores.shape[3] * 32
    assert cost_of(config).params == sum(parameter.numel() for parameter in model.parameters())
    assert cost_of(config).macs > cost_of(VIT).macs


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_saved_model_computes_the_same_and_adapts_to_other_windows(
    config: DenseConfig, tmp_path: Path
) -> None:
    model = build(config).eval()
    save(model, tmp_path / "model", classes=list("abcde"))
    loaded = load(tmp_path / "model")
    images = torch.randn(1, 3, 32, 32)
    assert loaded.model.config == config
    assert torch.equal(loaded.model(images), model(images))
    larger = load(tmp_path / "model", image_size=64).model
    assert larger.config.image_size == (64, 64)
    # A model of the other size has the table that this one computes on the way.
    torch.testing.assert_close(larger(torch.ones(1, 3, 64, 64)), model(torch.ones(1, 3, 64, 64)))
    with pytest.raises(ConfigError, match="fine-tune it on masks"):
        load(tmp_path / "model", num_classes=3)


@pytest.mark.parametrize("kind", ["eomt", "eomt on rotary positions"])
def test_an_eomt_is_a_plain_vit_once_nothing_is_masked(kind: str) -> None:
    model = build(CONFIGS[kind])
    assert isinstance(model, EoMT)
    trained = TrainedEoMT(model, num_points=4).eval()
    images = torch.randn(2, 3, 32, 32)
    answers = trained(images, torch.ones(2))
    masks, classes = model.answers(images)
    # The attention of the queries is written out in training, and fused otherwise.
    torch.testing.assert_close(answers.masks[-1], masks, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(answers.classes[-1], classes, rtol=1e-4, atol=1e-5)
    assert answers.masks.shape == (3, 2, 7, 8, 8)
    masked = trained(images, torch.zeros(2))
    assert not torch.allclose(masked.masks[-1], masks, atol=1e-3)


def test_a_block_hides_patches_from_queries_as_the_formula_does() -> None:
    block = build(VIT).blocks[0].double()
    tokens, is_hidden = torch.randn(2, 7 + 5 + 16, 32, dtype=torch.float64), torch.rand(2, 7, 16) < 0.5
    is_hidden[0, 0] = True  # this query still sees all queries and the five tokens before the patches
    bias = torch.zeros(2, 1, 28, 28, dtype=torch.float64)
    bias[:, 0, :7, 12:].masked_fill_(is_hidden, -math.inf)
    q, k, v = block.attention.project(block.norm_1(tokens))
    mixed = (q @ k.transpose(-2, -1) / math.sqrt(8) + bias).softmax(dim=-1) @ v
    wanted = tokens + block.scale_1(block.attention.join(mixed))
    wanted = wanted + block.scale_2(block.mlp(block.norm_2(wanted)))
    torch.testing.assert_close(masked_block(block, tokens, is_hidden), wanted, rtol=0, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("compiles", [False, True])
def test_gradients_through_masked_queries_on_a_gpu_are_those_of_fp32(compiles: bool) -> None:
    """1,125 tokens, no multiple of 8, as with windows of 448 px; a fused kernel with a mask returned 1e9 here."""
    vit = as_encoder(
        ViTConfig(
            image_size=(448, 448),
            patch_size=(14, 14),
            width=96,
            depth=3,
            num_heads=2,
            mlp_width=96,
            layer_scale=1.0,
        )
    )
    model = build(EoMTConfig(vit=vit, num_classes=5, num_queries=100, num_blocks=2)).cuda()
    assert isinstance(model, EoMT)
    trained = TrainedEoMT(model, num_points=4)
    images = torch.randn(4, 3, 448, 448, device="cuda")
    gradients = []
    for in_bf16 in (False, True):
        forward = torch.compile(trained) if compiles and in_bf16 else trained
        trained.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=in_bf16):
            answers: QueryAnswers = forward(images, torch.zeros(4, device="cuda"))
        (answers.masks.float().square().mean() + answers.classes.float().square().mean()).backward()
        gradients.append([p.grad.clone() for p in trained.parameters() if p.grad is not None])
    norms = [torch.stack([one.norm() for one in each]).norm() for each in gradients]
    # bf16 moves a few patches across the border of a mask, so single tensors differ by more than rounding.
    torch.testing.assert_close(norms[1], norms[0], rtol=0.1, atol=0)


def test_masks_are_annealed_away_block_after_block() -> None:
    progress = torch.tensor([0.0, 1 / 6, 0.25, 1 / 3, 1.0])
    first = masked_share(progress, place=0, num_blocks=4)
    torch.testing.assert_close(first, torch.tensor([1.0, 1.0, 0.5**0.9, 0.0, 0.0]))
    assert (masked_share(progress, place=1, num_blocks=4) >= first).all()


def test_windows_cover_a_picture_and_overlaps_are_averaged() -> None:
    assert starts(32, 32) == [0]
    assert starts(33, 32) == [0, 1]
    assert starts(100, 32) == [0, 23, 45, 68]
    assert covering_size(100, 50, window=(32, 32)) == (64, 32)
    picture = torch.arange(40.0).expand(1, 32, 40)

    def scores_of(windows: torch.Tensor) -> torch.Tensor:
        return torch.cat([windows, windows - windows.amax(dim=(2, 3), keepdim=True)], dim=1)

    (scores,) = picture_scores([picture], scores_of, window=(32, 32), most_windows=1)
    torch.testing.assert_close(scores[0], picture[0])
    torch.testing.assert_close(scores[1, 0, 20], torch.tensor(((20 - 31) + (20 - 39)) / 2))


def test_a_very_long_picture_is_compressed_to_a_row_of_windows() -> None:
    assert covering_size(1, 60_000, window=(32, 32)) == (32, 32 * 32)
    assert covering_size(60_000, 2, window=(32, 48)) == (32 * 32, 48)
    assert covering_size(30, 60, window=(32, 32)) == (32, 64)


def test_classes_are_found_in_parts_where_a_picture_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(7, 5, 6)
    whole = most_likely(scores, (11, 13))
    monkeypatch.setattr("vitrine.models.dense.windows.MOST_NUMBERS", 11 * 13 * 2)
    assert torch.equal(most_likely(scores, (11, 13)), whole)


def test_a_vit_with_a_stem_is_refused() -> None:
    branched = dataclasses.replace(VIT, num_branches=2)
    with pytest.raises(ConfigError, match="needs a plain ViT"):
        LinearSegmenterConfig(vit=branched, num_classes=2)
