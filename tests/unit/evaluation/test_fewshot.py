import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import class_folders, photo, save

from vitrine.data.sources.opening import open_source
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.fewshot import (
    draw_support,
    fewshot_accuracy,
    open_support_and_test,
    parse_shots,
    without_small_classes,
)
from vitrine.runtime.progress import listening


def separable(num_classes=4, per_class=6, width=4):
    random = np.random.default_rng(0)
    labels = np.arange(num_classes * per_class) % num_classes
    features = 10 * np.eye(width)[labels] + 0.1 * random.normal(size=(len(labels), width))
    return features, labels


@pytest.mark.parametrize("probe", ["ridge", "knn", "logistic"])
def test_classes_that_lie_apart_are_told_apart_from_one_example(probe):
    features, labels = separable()
    result = fewshot_accuracy(features, labels, features, labels, shots=[1, 5], probe=probe)
    assert [score.mean for score in result.scores] == [1.0, 1.0]
    assert [score.spread for score in result.scores] == [0.0, 0.0]


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_a_support_set_has_the_shots_of_every_class_in_class_order_and_grows_with_shots(seed, shots, classes):
    labels = np.random.default_rng(seed).permutation(np.arange(classes * 6) % classes)
    rows = draw_support(labels, shots=shots, seed=seed, num_classes=classes)
    assert labels[rows].tolist() == [k for k in range(classes) for _ in range(shots)]
    more = draw_support(labels, shots=6, seed=seed, num_classes=classes)
    assert set(rows) <= set(more)


def test_the_mean_and_spread_are_those_of_the_seeds():
    random = np.random.default_rng(1)
    labels = np.arange(60) % 3
    features = random.normal(size=(60, 4)) + labels[:, None] * 0.5
    score = fewshot_accuracy(features, labels, features, labels, shots=[2], seeds=5).scores[0]
    assert len(set(score.accuracies)) > 1
    assert score.mean == pytest.approx(np.mean(score.accuracies), abs=1e-15)
    assert score.spread == pytest.approx(np.std(score.accuracies, ddof=1), abs=1e-15)
    assert fewshot_accuracy(features, labels, features, labels, shots=[2], seeds=1).scores[0].spread is None


def test_the_order_of_the_test_rows_does_not_matter_beyond_one_block():
    features, labels = separable()
    test, test_labels = np.tile(features, (200, 1)), np.tile(labels, 200)  # more rows than one block
    backwards = fewshot_accuracy(features, labels, test[::-1].copy(), test_labels[::-1].copy(), shots=[1])
    assert backwards.scores == fewshot_accuracy(features, labels, test, test_labels, shots=[1]).scores


def test_half_precision_features_are_taken_and_solved_in_float64():
    features, labels = separable()
    half = torch.from_numpy(features).bfloat16()
    assert fewshot_accuracy(half, labels, half, labels, shots=[1]).scores[0].mean == 1.0


def test_the_result_finds_scores_by_shots_and_l2():
    features, labels = separable()
    result = fewshot_accuracy(features, labels, features, labels, shots=[1, 5], l2=[1.0, 1024.0])
    assert [(score.shots, score.l2) for score in result.scores] == [
        (1, 1.0),
        (1, 1024.0),
        (5, 1.0),
        (5, 1024.0),
    ]
    assert result.score(5, l2=1024.0).l2 == 1024.0
    with pytest.raises(ConfigError, match=r"at 7 shots.*are 1, 5$"):
        result.score(7)


def test_fewer_examples_than_shots_are_refused_with_the_class_by_name():
    features, labels = separable()
    keep = ~((labels == 2) & (np.arange(len(labels)) > 6))
    with pytest.raises(DataError, match=r"^cat has 2.*5 shots;.*2 shots"):
        fewshot_accuracy(
            features[keep], labels[keep], features, labels, shots=[1, 5], class_names=["a", "b", "cat", "d"]
        )


def test_a_class_with_no_examples_is_refused_not_averaged_over():
    features, labels = separable()
    keep = labels != 1
    with pytest.raises(DataError, match=r"^class 1 has no .*examples"):
        fewshot_accuracy(features[keep], labels[keep], features, labels, shots=[1])


def test_a_label_outside_the_classes_is_refused():
    features, labels = separable()
    with pytest.raises(DataError, match=r"^label 3.*3 classes;.*0 to 2"):
        fewshot_accuracy(features, labels, features, labels, shots=[1], class_names=["a", "b", "c"])


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"shots": []}, "shots"),
        ({"shots": [0]}, "shots"),
        ({"seeds": 0}, "seeds"),
        ({"l2": 0.0}, "l2"),
        ({"l2": []}, "l2"),
        ({"probe": "svm"}, "probe"),
        ({"probe": "knn", "l2": 1.0}, "l2"),
        ({"probe": "knn", "neighbours": 0}, "neighbours"),
    ],
)
def test_nonsense_options_are_refused_by_name(change, option):
    features, labels = separable()
    with pytest.raises(ConfigError) as refused:
        fewshot_accuracy(features, labels, features, labels, **{"shots": [1], **change})
    assert refused.value.option == option


def test_broken_features_and_labels_are_refused_in_one_sentence():
    features, labels = separable()
    broken = features.copy()
    broken[3, 2] = np.nan
    for train, targets, message in [
        (broken, labels, "NaN or infinity"),
        (features[:, :3], labels, "train features have 3 columns and test features 4"),
        (features, labels[:5], r"must be \(N, D\) and labels \(N,\)"),
        (features, labels.astype(float), "whole numbers from 0, got torch.float64"),
        (features, labels - 1, "whole numbers from 0, got -1"),
        (features[:0], labels[:0], "train set has no examples"),
    ]:
        with pytest.raises(DataError, match=message):
            fewshot_accuracy(train, targets, features, labels, shots=[1])


def test_shots_are_read_from_text_and_nonsense_is_refused():
    assert parse_shots("1, 5,10") == (1, 5, 10)
    with pytest.raises(ConfigError, match="got '1,x'"):
        parse_shots("1,x")


def test_draws_that_take_every_example_are_one_set_and_have_no_spread():
    features, labels = separable(per_class=5)
    few, all_of_them = fewshot_accuracy(features, labels, features, labels, shots=[1, 5], seeds=3).scores
    assert len(few.accuracies) == 3 and few.spread is not None
    assert len(all_of_them.accuracies) == 1 and all_of_them.spread is None


def test_one_class_is_refused_since_every_answer_would_be_right(tmp_path):
    class_folders(tmp_path, classes=("cat",))
    with pytest.raises(DataError):
        open_support_and_test(str(tmp_path), test_fraction=0.2)


def test_a_class_with_a_single_photo_is_left_out_and_named(tmp_path):
    class_folders(tmp_path, classes=("cat", "dog", "owl"), each=6)
    save(tmp_path / "bat" / "0.png", photo(99))

    class Heard:
        said = ""

        def notice(self, text, advice=()):
            Heard.said += text

    source = open_source(str(tmp_path))
    with listening(Heard()):
        train, test = without_small_classes(source, source)
    assert train.classes == test.classes == ("cat", "dog", "owl") and len(train) == 18
    assert train.counts().tolist() == [6, 6, 6] and "bat (1)" in Heard.said


def test_small_classes_stay_where_they_are_most_of_them(tmp_path):
    class_folders(tmp_path, classes=("cat", "dog"), each=2)
    source = open_source(str(tmp_path))
    assert without_small_classes(source, source)[0] is source
