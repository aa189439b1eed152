"""scikit-learn's own checks of an estimator, on rows that an adapter turns into pictures. None is exempt."""

import numpy as np
import pytest
from servers import small_vit
from sklearn.utils import InputTags
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import validate_data

import vitrine
from vitrine import VitClassifier
from vitrine.checkpoints import locating
from vitrine.data.preparing.preprocess import Preprocess

SIZE = 32


def pictures(rows):
    """Draw each row as a picture of stripes, one per feature, brighter for larger values."""
    brightness = 255 / (1 + np.exp(-np.clip(rows.astype(np.float64), -30, 30)))  # (N, F)
    stripes = np.array_split(np.arange(SIZE), rows.shape[1])
    column = np.concatenate([np.full(len(each), number) for number, each in enumerate(stripes)])
    grey = np.repeat(brightness[:, None, column], SIZE, axis=1).round().astype(np.uint8)  # (N, 32, 32)
    return list(np.repeat(grey[..., None], 3, axis=3))


class RowClassifier(VitClassifier):
    """The adapter: rows are validated as scikit-learn does, then drawn; all else is `VitClassifier`."""

    def fit(self, X, y=None, sample_weight=None):
        return super().fit(pictures(validate_data(self, X)), y, sample_weight)

    def fit_transform(self, X, y=None):
        return self.fit(X, y).transform(X)

    def score(self, X, y, sample_weight=None):
        return float(np.average(self.predict(X) == np.asarray(y), weights=sample_weight))

    def transform(self, X):
        return super().transform(self._drawn(X))

    def _scores(self, X):
        return super()._scores(self._drawn(X))

    def _drawn(self, X):
        self._require_fitted()
        return pictures(validate_data(self, X, reset=False))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = InputTags(two_d_array=True)
        return tags


def checks():
    estimator = RowClassifier(l2=0.25, device="cpu", workers=0, batch_size=1)
    return [
        pytest.param(check, instance, id=check.func.__name__)
        for instance, check in estimator_checks_generator(estimator)
    ]


@pytest.fixture(scope="module", autouse=True)
def tiny_box(tmp_path_factory):
    folder = tmp_path_factory.mktemp("box") / "box"
    model = small_vit(depth=1)
    vitrine.save(model, folder, preprocess=Preprocess(size=(SIZE, SIZE), rule="squash", crop_fraction=1.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locating, "BOX_FOLDER", folder)
        yield


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("check", "instance"), checks())
def test_it_passes_the_checks_of_scikit_learn(check, instance):
    check(instance)
