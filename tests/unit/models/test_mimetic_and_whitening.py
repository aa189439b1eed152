"""Two initialisations against their formulas, written out: attention like a trained model's, whitened patches."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrine
from vitrine.checkpoints import load
from vitrine.errors import ConfigError
from vitrine.models import ViT, create_model
from vitrine.models.mimetic import QUERY_KEY, VALUE_OUTPUT, initialise_mimetic
from vitrine.models.whitening import patch_statistics, whiten_patches, whitening_kernel
from vitrine.recipes import find_recipe
from vitrine.runs.starting_model import pretrained_model
from vitrine.training.config import TrainingConfig
from vitrine.training.optimizer import freeze

D, H, K = 32, 4, 8
DATA = "generated:shapes?count=64&size=32&label=colour"


def test_products_of_attention_are_noise_plus_and_minus_the_identity() -> None:
    """Equations of arXiv:2305.09828, section 4: the best approximation of rank K per head; W_V W_O exactly."""
    to_qkv, to_out = torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D)
    torch.manual_seed(3)
    initialise_mimetic(to_qkv, to_out, num_heads=H)
    torch.manual_seed(3)  # the same noise again, written out
    noise = [torch.randn(H, D, D).numpy() / D**0.5, torch.randn(1, D, D).numpy() / D**0.5]
    w_q, w_k, w_v = (part.detach().T.numpy() for part in to_qkv.weight.chunk(3))  # (D, D), head after head
    for head in range(H):
        own = slice(head * K, (head + 1) * K)
        left, values, right = np.linalg.svd(QUERY_KEY[0] * noise[0][head] + QUERY_KEY[1] * np.eye(D))
        nearest = (left[:, :K] * values[:K]) @ right[:K]
        # Products of 32 terms around 1 in fp32.
        np.testing.assert_allclose(w_q[:, own] @ w_k[:, own].T, nearest, atol=1e-5)
    expected = VALUE_OUTPUT[0] * noise[1][0] - VALUE_OUTPUT[1] * np.eye(D)
    np.testing.assert_allclose(w_v @ to_out.weight.detach().T.numpy(), expected, atol=1e-5)
    assert not to_qkv.bias.any() and not to_out.bias.any()


def test_a_mimetic_model_attends_to_similar_tokens_from_the_start() -> None:
    shape = {"image_size": 32, "patch_size": 4, "width": 64, "depth": 2, "num_heads": 2, "mlp_width": 64}
    own = {}
    for kind in ("vit", "mimetic"):
        torch.manual_seed(0)
        model = create_model("ViT", num_classes=3, positions="sincos_2d", initialisation=kind, **shape).eval()
        assert isinstance(model, ViT)
        images = torch.randn(2, 3, 32, 32)
        own[kind] = next(iter(model.attention(images)))[1].diagonal(dim1=2, dim2=3).mean()
    # Of 65 tokens, each has 1.5 % of the attention where nothing prefers any.
    assert own["vit"] < 0.05 and own["mimetic"] > 5 * own["vit"]


def images() -> torch.Tensor:
    """Pictures whose neighbouring pixels are alike, as in photographs."""
    coarse = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    fine = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear")
    return fine + 0.3 * torch.randn(40, 3, 32, 32, generator=torch.Generator().manual_seed(1)) + 0.5


@pytest.mark.parametrize("width", [64, 48, 20])
def test_whitened_patches_are_uncorrelated_with_mean_zero_and_mean_square_one(width: int) -> None:
    model = create_model(
        "ViT", image_size=32, patch_size=4, width=width, depth=1, num_heads=2, mlp_width=8, num_classes=2
    )
    assert isinstance(model, ViT)
    whiten_patches(model, images().split(16), relative_eps=0.0)
    outputs = model.embed_patches(images())[0].flatten(0, 1).detach().double().numpy()
    assert np.abs(outputs.mean(axis=0)).max() < 1e-5
    covariance = outputs.T @ outputs / len(outputs)
    # A turn of k uncorrelated directions: D / k in k directions, nothing in the others. fp32 weights.
    k = min(width, 48)
    expected = np.sort([width / k] * k + [0.0] * (width - k))
    np.testing.assert_allclose(np.linalg.eigvalsh(covariance), expected, atol=1e-4)
    assert np.trace(covariance) / width == pytest.approx(1, abs=1e-4)


def test_the_kernel_is_the_formula_with_its_eps() -> None:
    _, covariance = patch_statistics([images()], patch=(4, 4))
    torch.manual_seed(0)
    kernel = whitening_kernel(covariance, width=64, relative_eps=0.01).numpy()
    torch.manual_seed(0)
    turn = torch.nn.init.orthogonal_(torch.empty(64, 48)).numpy()
    values, vectors = np.linalg.eigh(covariance.numpy())
    eps = 0.01 * np.trace(covariance.numpy()) / 48
    expected = (64 / 48) ** 0.5 * turn @ np.diag((values + eps) ** -0.5) @ vectors.T
    # The turn is drawn in fp32; eigenvectors may have either sign, so products are compared.
    np.testing.assert_allclose(kernel.T @ kernel, expected.T @ expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_run_begins_with_whitened_patches_and_keeps_them_if_they_are_frozen(
    tmp_path: Path, frozen: bool
) -> None:
    weights = []
    for steps in (1, 3):
        run = vitrine.pretrain(
            DATA, recipe="demo", steps=steps, batch_size=8, out=tmp_path / str(steps), device="cpu", workers=0,
            set=["whitens_patches=true", f"training.freezes_patches={str(frozen).lower()}"],
        )  # fmt: skip
        weights.append(load(str(run.model)).model.patch_projection.weight.detach())  # type: ignore[operator, union-attr]
    assert torch.equal(weights[0], weights[1]) == frozen
    products = weights[1].flatten(1) @ weights[1].flatten(1).T
    # E E^T is R (Lambda + eps)^-1 R^T: its eigenvalues spread like those of the patches, a random kernel's do not.
    values = torch.linalg.eigvalsh(products)
    assert values[-1] / values[0] > 20


def test_only_the_projection_of_patches_is_frozen() -> None:
    model = create_model("ViT", image_size=32, patch_size=8, width=16, depth=1, num_heads=2, mlp_width=8)
    freeze(model, TrainingConfig(freezes_patches=True))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"patch_projection.weight", "patch_projection.bias"}
    with pytest.raises(ConfigError, match="needs a ViT"):
        freeze(create_model("BiT-R50x1", image_size=32), TrainingConfig(freezes_patches=True))


def test_trained_weights_are_not_whitened() -> None:
    recipe = dataclasses.replace(find_recipe("demo"), whitens_patches=True)
    with pytest.raises(ConfigError, match="pre-training"):
        pretrained_model("vitrine", recipe, num_classes=2)
