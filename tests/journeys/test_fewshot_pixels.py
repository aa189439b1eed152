"""Pixels labelled in closed form: the saved model scores what was reported, and the solution is least squares."""

from pathlib import Path

import numpy as np
import pytest
import torch
from dense import saved_vit
from journeys.commandline import assert_refused, inside
from masks import mask_folders

import vitrine
from vitrine.errors import ConfigError
from vitrine.evaluation.pixel_fewshot import PictureTokens, patch_targets, solved
from vitrine.evaluation.ridge import BIAS_FEATURE


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mask_folders(tmp_path_factory.mktemp("masks"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_vit(tmp_path_factory.mktemp("weights") / "vit", image_size=32, patch_size=4)


def test_the_saved_model_scores_what_was_reported(data: Path, weights: Path, tmp_path: Path) -> None:
    count = len(list((data / "images" / "train").iterdir()))
    report = vitrine.fewshot(
        weights, data, shots=(1, count), seeds=2, l2=1.0, out=tmp_path / "out", device="cpu", workers=0
    )
    one, every = report.scores
    assert (len(one.mean_ious), len(every.mean_ious)) == (2, 1)  # all pictures are one draw
    assert every.mean > 0.4
    evaluated = vitrine.evaluate(report.wrote[0], data, out=tmp_path / "evaluation", device="cpu")
    assert evaluated.mean_iou == pytest.approx(every.mean, abs=5e-3)  # tokens are kept in half precision
    assert vitrine.load(report.wrote[0]).classes == report.classes


def test_the_solution_is_regularised_least_squares_on_the_shares_of_patches() -> None:
    generator = np.random.default_rng(0)
    classes = generator.integers(0, 3, (16, 24)).astype(np.uint8)
    classes[:4, :4] = 255
    classes[0:4, 4:8] = 2
    maps = torch.from_numpy(generator.normal(size=(2, 5, 4, 4))).half()
    tokens = PictureTokens(maps=maps, resized=(16, 24), size=(16, 24))
    shares, labelled = patch_targets(classes, tokens, window=(16, 16), num_classes=3)
    assert shares.shape == (32, 3)
    assert labelled[0] == 0
    assert shares[1].tolist() == [0, 0, 1]
    weight, bias = solved([(tokens, classes)], window=(16, 16), num_classes=3, l2=2.0)
    X = maps.permute(0, 2, 3, 1).reshape(32, 5).double()[labelled > 0.5]
    Y = 2 * shares[labelled > 0.5].double() - 1
    mean, std = X.mean(dim=0), X.std(dim=0, correction=0) + 1e-5
    Z = torch.cat([(X - mean) / std, torch.full((len(X), 1), BIAS_FEATURE)], dim=1)
    W = torch.linalg.solve(Z.T @ Z + 2.0 * torch.eye(6), Z.T @ Y)
    wanted = Z @ W
    np.testing.assert_allclose(X @ weight.T.double() + bias.double(), wanted, atol=1e-5)


def test_what_does_not_go_with_pixels_is_refused(data: Path, weights: Path) -> None:
    refused = inside("fewshot", weights, data, "--probe", "knn", "--device", "cpu")
    assert_refused(refused, "closed form", error=ConfigError, option="probe")
    refused = inside("fewshot", weights, data, "--shots", "9999", "--device", "cpu")
    assert_refused(refused, "must be at most")
