"""The closed form against a written-out float64 reference and against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier

from vitrine.evaluation.fewshot import draw_support, fewshot_accuracy
from vitrine.evaluation.probes import TEMPERATURE, fit_logistic, nearest_neighbours
from vitrine.evaluation.ridge import RidgeClassifiers, ridge_solutions, with_constant

# More examples than features (the primal system) and fewer (the dual).
REGIMES = {"primal": (120, 16), "dual": (15, 64)}
L2 = [1e-2, 1.0, 1024.0, 1e6]


def problem(regime, num_classes=5, seed=0):
    rows, width = REGIMES[regime]
    random = np.random.default_rng(seed)
    centres = random.normal(size=(num_classes, width))
    labels = np.arange(rows) % num_classes
    features = centres[labels] + 2 * random.normal(size=(rows, width)) + 3
    test_labels = np.arange(200) % num_classes
    test = centres[test_labels] + 2 * random.normal(size=(200, width)) + 3
    return features, labels, test, test_labels


def reference_scores(features, labels, test, *, num_classes, l2):
    """The protocol written out in NumPy, solved by LU in the primal form whatever the regime."""
    mean, std = features.mean(axis=0), features.std(axis=0) + 1e-5
    X = np.hstack([(features - mean) / std, np.full((len(features), 1), 100.0)])
    T = np.hstack([(test - mean) / std, np.full((len(test), 1), 100.0)])
    Y = np.where(labels[:, None] == np.arange(num_classes)[None], 1.0, -1.0)
    W = np.linalg.solve(X.T @ X + l2 * np.eye(X.shape[1]), X.T @ Y)
    return X, Y, W, T @ W


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("l2", L2)
def test_scores_equal_an_independent_float64_reference(regime, l2):
    features, labels, test, _ = problem(regime)
    _, _, _, expected = reference_scores(features, labels, test, num_classes=5, l2=l2)
    # All l2 at once: the one decomposition must serve each of them.
    fitted = RidgeClassifiers(torch.from_numpy(features), torch.from_numpy(labels), num_classes=5, l2=L2)
    got = with_constant(fitted.normalise(torch.from_numpy(test))) @ fitted.weights[L2.index(l2)]
    # Scores are of order 1; 1e-9 leaves room for the condition number at the smallest l2 (about 1e8 here).
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(
        fitted.predict(torch.from_numpy(test))[L2.index(l2)].numpy(), expected.argmax(axis=1)
    )


@pytest.mark.parametrize("regime", REGIMES)
def test_primal_and_dual_agree(regime):
    features, labels, test, _ = problem(regime)
    X, Y, _, _ = reference_scores(features, labels, test, num_classes=5, l2=1024.0)
    (weights,) = ridge_solutions(torch.from_numpy(X), torch.from_numpy(Y), l2=[1024.0])
    dual = X.T @ np.linalg.solve(X @ X.T + 1024.0 * np.eye(len(X)), Y)
    np.testing.assert_allclose(weights.numpy(), dual, rtol=0, atol=1e-12)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("l2", [1.0, 1024.0])
def test_weights_equal_scikit_learns_ridge_without_an_intercept(regime, l2):
    features, labels, test, _ = problem(regime)
    X, Y, _, _ = reference_scores(features, labels, test, num_classes=5, l2=l2)
    (weights,) = ridge_solutions(torch.from_numpy(X), torch.from_numpy(Y), l2=[l2])
    foreign = Ridge(alpha=l2, fit_intercept=False, solver="svd").fit(X, Y)
    np.testing.assert_allclose(weights.numpy(), foreign.coef_.T, rtol=0, atol=1e-9)


@pytest.mark.parametrize("regime", REGIMES)
def test_accuracy_equals_the_reference_for_every_shot_seed_and_l2(regime):
    features, labels, test, test_labels = problem(regime)
    result = fewshot_accuracy(features, labels, test, test_labels, shots=[1, 3], seeds=3, l2=[1.0, 1024.0])
    for score in result.scores:
        for seed, accuracy in enumerate(score.accuracies):
            random = np.random.default_rng(seed)
            rows = np.concatenate(
                [random.permutation(np.flatnonzero(labels == k))[: score.shots] for k in range(5)]
            )
            np.testing.assert_array_equal(
                rows, draw_support(labels, shots=score.shots, seed=seed, num_classes=5)
            )
            *_, scores = reference_scores(features[rows], labels[rows], test, num_classes=5, l2=score.l2)
            assert accuracy == (scores.argmax(axis=1) == test_labels).mean()


def test_logistic_regression_equals_scikit_learns():
    features, labels, _, _ = problem("primal")
    features = (features - features.mean(axis=0)) / features.std(axis=0)  # as the probe does
    weight, bias = fit_logistic(torch.from_numpy(features), torch.from_numpy(labels), num_classes=5, l2=2.0)
    foreign = LogisticRegression(C=0.5, tol=1e-10, max_iter=1000, solver="newton-cholesky").fit(
        features, labels
    )
    # Gradients below 1e-7 over a curvature of l2 / N = 1/60 leave weights within 1e-5.
    # The bias is only known up to a constant over the classes; both centre it differently.
    np.testing.assert_allclose(weight.T.numpy(), foreign.coef_, rtol=0, atol=1e-5)
    mine, other = bias.numpy() - bias.numpy().mean(), foreign.intercept_ - foreign.intercept_.mean()
    np.testing.assert_allclose(mine, other, rtol=0, atol=1e-5)


def test_nearest_neighbours_equal_scikit_learns_with_the_same_weights():
    features, labels, test, _ = problem("primal")
    ours = nearest_neighbours(
        torch.from_numpy(features),
        torch.from_numpy(labels),
        torch.from_numpy(test),
        num_classes=5,
        neighbours=7,
    )
    foreign = KNeighborsClassifier(
        n_neighbors=7, metric="cosine", weights=lambda distance: np.exp(-distance / TEMPERATURE)
    )
    np.testing.assert_array_equal(ours.numpy(), foreign.fit(features, labels).predict(test))
