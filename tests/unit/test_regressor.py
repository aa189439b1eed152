"""`VitRegressor`: numbers from pictures, with scikit-learn's interface."""

import numpy as np
import pytest
import torch

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError, DataError
from vitrine.models import create_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights") / "model"
    torch.manual_seed(0)
    model = create_model(
        "ViT-B/16",
        image_size=16,
        num_classes=None,
        patch_size=8,
        width=16,
        depth=1,
        num_heads=2,
        mlp_width=32,
    )
    vitrine.save(model, folder, preprocess=Preprocess(size=(16, 16)))
    return folder


def grey(brightness):
    """A picture whose number is its brightness."""
    noise = np.random.default_rng(int(brightness)).integers(-10, 10, (16, 16, 3))
    return np.clip(brightness + noise, 0, 255).astype(np.uint8)


def test_brightness_is_predicted_with_an_interval(weights):
    values = np.arange(20, 230, 3.5)
    pictures = [grey(value) for value in values]
    regressor = vitrine.VitRegressor(weights, device="cpu").fit(pictures[::2], values[::2])
    # A model of 16 random features knows most of it.
    assert regressor.number_line_.r2 > 0.5
    assert regressor.score(pictures[1::2], values[1::2]) > 0.5
    ends = regressor.predict_interval(pictures[1::2], coverage=0.9)
    inside = (ends[:, 0] <= values[1::2]) & (values[1::2] <= ends[:, 1])
    assert inside.mean() > 0.75
    assert regressor.predict([]).shape == (0,)


def test_words_and_missing_numbers_are_refused(weights):
    regressor = vitrine.VitRegressor(weights, device="cpu")
    pictures = [grey(value) for value in (10, 20, 30)]
    for y in (["a", "b", "c"], [1.0, float("nan"), 2.0], [1.0, 2.0]):
        with pytest.raises(DataError):
            regressor.fit(pictures, y)
    with pytest.raises(ConfigError):
        regressor.predict(pictures)  # not fitted


def test_scikit_learn_clones_it_and_knows_a_regressor(weights):
    base = pytest.importorskip("sklearn.base")
    regressor = vitrine.VitRegressor(weights, l2=3.0)
    assert base.clone(regressor).get_params() == regressor.get_params()
    assert base.is_regressor(regressor) and not base.is_classifier(regressor)
