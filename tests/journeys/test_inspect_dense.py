"""What queries and classes attend to: every decoder, against attention that is computed from the definition."""

from pathlib import Path

import numpy as np
import pytest
import torch
from dense import CLASSES, CONFIGS, saved_dense
from PIL import Image

import vitrine
from vitrine.checkpoints import load
from vitrine.inspection.dense_attention import patches_in, sights_of
from vitrine.models.dense.eomt import EoMT
from vitrine.models.dense.model import DenseModel


def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 40, generator=torch.Generator().manual_seed(5))


def dense(kind: str, folder: Path) -> DenseModel:
    model = load(saved_dense(kind, folder)).model
    assert isinstance(model, DenseModel)
    return model


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_decoder_shows_its_best_answers_with_attention_on_the_patches(
    kind: str, tmp_path: Path
) -> None:
    model = dense(kind, tmp_path)
    sights = sights_of(model, images(), most=3)
    assert len(sights) == 2
    for own in sights:
        assert 1 <= len(own) <= 3
        assert [one.score for one in own] == sorted((one.score for one in own), reverse=True)
        for one in own:
            assert one.attention.shape == (4, 5)
            assert (one.attention >= 0).all()
            assert one.attention.sum() <= 1 + 1e-5  # the rest goes to class tokens and queries
            assert (one.answer is None) == (CONFIGS[kind].answers == "boxes") == (one.box is not None)
    label = sights[0][0].label
    chosen = sights_of(model, images(), most=9, target=label)
    assert {one.label for own in chosen for one in own} == {label}


def test_the_attention_of_a_query_is_written_out(tmp_path: Path) -> None:
    model = dense("eomt", tmp_path)
    assert isinstance(model, EoMT)
    best = sights_of(model, images(), most=1)[0][0]
    query = int(best.asker.split()[1])
    with torch.no_grad():
        tokens, _ = model.first_blocks(images()[:1])
        attention = model.vit.blocks[1].attention
        q, k, _ = attention.to_qkv(model.vit.blocks[1].norm_1(tokens)).chunk(3, dim=-1)
        heads = [part[0].view(-1, 2, 16).transpose(0, 1) for part in (q, k)]
        weights = (heads[0] @ heads[1].transpose(1, 2) / 16**0.5).softmax(dim=-1).mean(dim=0)
    np.testing.assert_allclose(best.attention.ravel(), weights[query, -20:], rtol=1e-5)


def test_a_box_without_a_centre_of_a_patch_has_the_nearest_one() -> None:
    inside = patches_in(torch.tensor([0.3, 0.5, 0.31, 0.52]), (4, 5)).view(4, 5)
    assert inside.nonzero().tolist() == [[2, 1]]
    assert patches_in(torch.tensor([0.0, 0.0, 1.0, 0.5]), (4, 5)).sum() == 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_page_shows_answers_before_the_figures_of_the_vit(kind: str, tmp_path: Path) -> None:
    saved_dense(kind, tmp_path / "model")
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    result = vitrine.inspect(
        tmp_path / "model", tmp_path / "photo.png", out=tmp_path / "out", class_=CLASSES[1], device="cpu"
    )
    assert result.figures[0].name == "answers_00.png"
    page = (tmp_path / "out" / "inspect.html").read_text()
    assert page.index("Answers: photo.png") < page.index("Attention rollout")
