"""Our metrics against scikit-learn's, where both have them."""

import warnings

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn import metrics as foreign

from vitrine.evaluation.calibration import measure_calibration, softmax
from vitrine.evaluation.metrics import (
    average_precisions,
    class_figures,
    confusion_matrix,
    interval_of_share,
    macro_average,
    mean_average_precision,
    top_k_correct,
)

K = 8


@pytest.fixture
def problem():
    random = np.random.default_rng(0)
    labels = random.integers(0, K, 500)
    logits = random.normal(size=(500, K)).astype(np.float32)
    logits[np.arange(500), labels] += 1.0
    return logits, labels


@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k_equals_scikit_learns(problem, k):
    logits, labels = problem
    expected = foreign.top_k_accuracy_score(labels, logits, k=k, labels=range(K))
    assert top_k_correct(logits, labels, k=k).mean() == expected


def test_confusion_precision_recall_and_f1_equal_scikit_learns(problem):
    logits, labels = problem
    predicted = logits.argmax(axis=1)
    predicted[predicted == 3] = 4  # a class that is never predicted
    confusion = confusion_matrix(predicted, labels, num_classes=K)
    np.testing.assert_array_equal(confusion, foreign.confusion_matrix(labels, predicted, labels=range(K)))
    precision, recall, f1, counts = foreign.precision_recall_fscore_support(
        labels, predicted, labels=range(K), zero_division=0
    )
    figures = class_figures(confusion, tuple("abcdefgh"))
    assert figures[3].precision is None
    np.testing.assert_allclose([figure.precision or 0 for figure in figures], precision, rtol=1e-12)
    np.testing.assert_allclose([figure.recall for figure in figures], recall, rtol=1e-12)
    np.testing.assert_allclose([figure.f1 for figure in figures], f1, rtol=1e-12)
    assert [figure.num_images for figure in figures] == counts.tolist()
    assert macro_average(figures, name="f1") == pytest.approx(f1.mean(), abs=1e-12)


def test_log_loss_and_brier_score_equal_scikit_learns(problem):
    logits, labels = problem
    probabilities = softmax(logits)
    got = measure_calibration(probabilities, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows of float32 sum to 1 within 1e-7, which it remarks on
        expected = foreign.log_loss(labels, probabilities, labels=range(K))
    assert got.log_loss == pytest.approx(expected, abs=1e-6)
    onehot = np.eye(K)[labels]
    assert got.brier == pytest.approx(((probabilities - onehot) ** 2).sum(axis=1).mean(), abs=1e-6)


def test_calibration_error_equals_its_formula_written_out(problem):
    logits, labels = problem
    probabilities = softmax(logits)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    expected = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    got = measure_calibration(probabilities, labels)
    assert got.ece == pytest.approx(expected, abs=1e-6)  # float32 means on one side
    assert sum(b.num_images for b in got.bins) == len(labels)


def test_average_precision_equals_scikit_learns_with_ties():
    random = np.random.default_rng(1)
    present = random.random((200, K)) < 0.2
    scores = np.round(random.normal(size=(200, K)) + present, 1)  # rounding makes equal scores
    expected = [foreign.average_precision_score(present[:, k], scores[:, k]) for k in range(K)]
    np.testing.assert_allclose(average_precisions(scores, present), expected, rtol=1e-12)
    assert mean_average_precision(scores, present) == pytest.approx(np.mean(expected), abs=1e-12)


def test_bootstrap_of_a_share_has_the_width_of_the_binomial():
    flags = np.arange(2000) % 5 > 0  # 80 %
    interval = interval_of_share(flags, resamples=2000)
    half = 1.96 * np.sqrt(0.8 * 0.2 / 2000)
    assert interval.value == 0.8
    # 2000 resamples know the 2.5 % point to about 5 % of the half width.
    assert interval.low == pytest.approx(0.8 - half, abs=0.1 * half)
    assert interval.high == pytest.approx(0.8 + half, abs=0.1 * half)
    assert interval == interval_of_share(flags, resamples=2000)


@pytest.mark.parametrize(("right", "total"), [(0, 5), (12, 12)])
def test_where_all_or_none_are_right_the_interval_equals_scipys_wilson_interval(right, total):
    """Resamples of twelve right answers are all right: they would say that nothing else can happen."""
    interval = interval_of_share(np.arange(total) < right)
    expected = binomtest(right, total).proportion_ci(method="wilson")
    assert interval.value == right / total
    # Wilson's is rational in z, which is kept to seven digits here.
    np.testing.assert_allclose((interval.low, interval.high), (expected.low, expected.high), atol=1e-6)
