import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from boxes import untrained_box
from pictures import save
from PIL import Image
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags

import vitrine
from vitrine import VitClassifier
from vitrine.checkpoints import locating
from vitrine.errors import ConfigError, DataError

COLOURS = {"red": (210, 50, 40), "green": (40, 170, 60), "blue": (40, 70, 210)}


@pytest.fixture(scope="module", autouse=True)
def small_box(tmp_path_factory):
    folder = untrained_box(tmp_path_factory.mktemp("box") / "box", image_size=32, num_classes=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locating, "BOX_FOLDER", folder)
        yield folder


@pytest.fixture(scope="module")
def pictures():
    """Noisy pictures of three colours: arrays, and what they show."""
    random = np.random.default_rng(0)
    names = [name for name in COLOURS for _ in range(8)]
    arrays = [
        np.clip(np.array(COLOURS[name]) + random.integers(-40, 40, (40, 48, 3)), 0, 255).astype(np.uint8)
        for name in names
    ]
    return arrays, names


def test_fit_predict_and_score_on_frozen_features(pictures):
    X, y = pictures
    found = VitClassifier(device="cpu").fit(X[::2], y[::2])
    assert found.classes_.tolist() == ["blue", "green", "red"]
    probabilities = found.predict_proba(X[1::2])
    assert probabilities.shape == (12, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert found.predict(X[1::2]).tolist() == found.classes_[probabilities.argmax(axis=1)].tolist()
    assert found.score(X[1::2], y[1::2]) > 0.9
    assert found.score(X[1::2], y[1::2], sample_weight=[1] * 12) == found.score(X[1::2], y[1::2])


def test_paths_pillow_images_and_arrays_are_all_the_same(pictures, tmp_path):
    X, y = pictures
    paths = [save(tmp_path / f"{number}.png", picture) for number, picture in enumerate(X)]
    kinds = [X, paths, list(map(str, paths)), [Image.fromarray(picture) for picture in X]]
    answers = [VitClassifier(device="cpu").fit(kind, y).predict_proba(kind) for kind in kinds]
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], atol=1e-6)


def test_labels_may_be_numbers_of_any_kind(pictures):
    X, y = pictures
    numbers = [{"red": 30, "green": -7, "blue": 4}[name] for name in y]
    found = VitClassifier(device="cpu").fit(X, numbers)
    assert found.classes_.tolist() == [-7, 4, 30]
    assert set(found.predict(X).tolist()) <= {-7, 4, 30}


def test_cross_validation_grid_search_and_clone_of_scikit_learn(pictures):
    X, y = pictures
    scores = cross_val_score(VitClassifier(device="cpu"), X, y, cv=3)
    assert scores.shape == (3,)
    assert scores.mean() > 0.8
    search = GridSearchCV(VitClassifier(device="cpu"), {"l2": [1.0, 1e6]}, cv=2).fit(X, y)
    assert search.best_estimator_.l2 in (1.0, 1e6)
    assert is_classifier(VitClassifier())
    copy = clone(VitClassifier("ViT-Ti/16", l2=3.0))
    assert copy.get_params() == VitClassifier("ViT-Ti/16", l2=3.0).get_params()


def test_fine_tuning_changes_the_weights_and_learns_the_colours(pictures, small_box, tmp_path):
    X, y = pictures
    tuned = VitClassifier(
        method="finetune",
        steps=12,
        batch_size=12,
        lr=1e-3,
        device="cpu",
        workers=0,
        run_folder=tmp_path / "run",
    ).fit(X, y)
    assert tuned.score(X, y) > 0.8
    assert tuned.predict_proba(X[:2]).shape == (2, 3)
    assert (tmp_path / "run" / "metrics.jsonl").exists()
    before, after = vitrine.load(small_box), vitrine.load(tmp_path / "run")
    assert not before.model.patch_projection.weight.equal(after.model.patch_projection.weight)
    assert after.classes == ("blue", "green", "red")


def test_a_fitted_classifier_survives_pickling(pictures):
    X, y = pictures
    found = VitClassifier(device="cpu").fit(X, y)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_allclose(again.predict_proba(X), found.predict_proba(X), atol=1e-6)


def test_mistakes_are_said_in_one_sentence(pictures):
    X, y = pictures
    for method in ("predict", "predict_proba", "decision_function", "transform"):
        with pytest.raises(NotFittedError) as refused:
            getattr(VitClassifier(), method)(X)
        assert isinstance(refused.value, ConfigError)
    with pytest.raises(ConfigError) as refused:
        VitClassifier(method="magic").fit(X, y)
    assert refused.value.option == "method"
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        VitClassifier().set_params(epoch=3)
    with pytest.raises(DataError, match="24 pictures and 23 labels"):
        VitClassifier().fit(X, y[1:])
    with pytest.raises(DataError, match="at least two classes"):
        VitClassifier().fit(X[:4], y[:4])
    with pytest.raises(DataError, match=r"^1 of 24 .*number 0: "):
        VitClassifier(device="cpu").fit([b"nothing", *X[1:]], y)


def test_it_shows_what_was_given_and_nothing_else():
    assert repr(VitClassifier()) == "VitClassifier()"
    assert repr(VitClassifier("ViT-B/16", l2=2.0)) == "VitClassifier(model='ViT-B/16', l2=2.0)"


def test_it_needs_no_scikit_learn():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from vitrine import VitClassifier\n"
        "print(VitClassifier(l2=1.0).get_params()['l2'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert found.stdout.strip() == "1.0", found.stderr


@pytest.fixture(scope="module")
def table(pictures, tmp_path_factory):
    """A table of paths and labels whose index does not begin at 0."""
    folder = tmp_path_factory.mktemp("table")
    X, y = pictures
    paths = [str(save(folder / f"{number}.png", picture)) for number, picture in enumerate(X)]
    return pd.DataFrame({"path": paths, "label": y}, index=range(100, 100 + len(paths)))


def test_columns_of_a_table_and_its_parts_are_pictures_and_labels(table, pictures):
    expected = VitClassifier(device="cpu").fit(*pictures).predict_proba(pictures[0])
    fitted = VitClassifier(device="cpu").fit(table["path"], table["label"])
    np.testing.assert_allclose(fitted.predict_proba(table[["path"]]), expected, atol=1e-6)
    np.testing.assert_allclose(fitted.predict_proba(table[["path"]].to_numpy()), expected, atol=1e-6)
    train, test = train_test_split(table, test_size=0.5, stratify=table["label"], random_state=0)
    halves = VitClassifier(device="cpu").fit(train["path"], train["label"])
    assert halves.score(test["path"], test["label"]) > 0.9
    assert cross_val_score(VitClassifier(device="cpu"), table["path"], table["label"], cv=2).mean() > 0.8
    with pytest.raises(DataError, match="path, label"):
        fitted.predict(table)


def test_generators_are_read_once(pictures):
    X, y = pictures
    fitted = VitClassifier(device="cpu").fit((picture for picture in X), (label for label in y))
    assert fitted.predict(iter(X)).tolist() == fitted.predict(X).tolist()


@pytest.mark.parametrize(
    "labels", [[0.5, 1.25], [1.0, np.nan], [1.0, np.inf], [1j, 2j], ["a", None], ["a", np.nan], [pd.NA, "b"]]
)
def test_labels_that_are_no_classes_are_refused(pictures, labels):
    X, _ = pictures
    with pytest.raises(ValueError):
        VitClassifier(device="cpu").fit(X[:2], labels)
    with pytest.raises(ValueError):
        VitClassifier(device="cpu").fit(X[:2], pd.Series(labels))


def test_a_weight_counts_a_picture_as_often(pictures):
    X, y = pictures
    counts = [number % 3 for number in range(len(X))]
    repeated = [number for number, count in enumerate(counts) for _ in range(count)]
    # Ridge regression leaves one of several copies out exactly; folds would part the copies.
    weighted = VitClassifier(device="cpu", l2=64).fit(X, y, sample_weight=counts)
    again = VitClassifier(device="cpu", l2=64).fit([X[n] for n in repeated], [y[n] for n in repeated])
    np.testing.assert_allclose(weighted.predict_proba(X), again.predict_proba(X), atol=1e-6)
    with pytest.raises(ConfigError) as refused:
        VitClassifier(method="finetune").fit(X, y, sample_weight=counts)
    assert refused.value.option == "sample_weight"


def test_features_feed_another_classifier_and_logits_order_the_probabilities(pictures):
    X, y = pictures
    fitted = VitClassifier(device="cpu").fit(X, y)
    logits, features = fitted.decision_function(X), fitted.transform(X)
    assert (logits.shape, features.shape) == ((24, 3), (24, fitted.predictor_.embed(X[:1]).rows.shape[1]))
    np.testing.assert_allclose(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), fitted.predict_proba(X))
    chain = make_pipeline(VitClassifier(device="cpu"), LogisticRegression()).fit(X, y)
    assert chain.score(X, y) > 0.9
    two = VitClassifier(device="cpu").fit(X[:16], y[:16])
    assert ((two.decision_function(X[:16]) > 0) == (two.predict(X[:16]) == two.classes_[1])).all()


def test_its_tags_claim_pictures_and_no_rows():
    tags = get_tags(VitClassifier())
    assert not tags.input_tags.two_d_array
    assert (
        tags.classifier_tags is not None and tags.transformer_tags is not None and tags.target_tags.required
    )
