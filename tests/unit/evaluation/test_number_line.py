"""Numbers from features: ridge regression, left-out errors, intervals."""

import math

import numpy as np
import pytest
import torch

from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.number_line import fit_number_line


def measured(count=60, width=5, noise=0.1, seed=0):
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, width))
    values = 1000 + 20 * features @ np.arange(1, width + 1) + 20 * noise * random.normal(size=count)
    return torch.from_numpy(features), torch.from_numpy(values)


def test_a_linear_number_is_found_in_its_own_units():
    features, values = measured(noise=0.0)
    line = fit_number_line(features, values)
    torch.testing.assert_close(line(features), values, rtol=1e-3, atol=0.5)
    assert line.r2 > 0.999 and line.mean_absolute_error < 0.5


def test_left_out_errors_are_those_of_fits_without_the_example():
    features, values = measured(count=12)
    line = fit_number_line(features, values, l2=4.0)
    rows = line.normalise(features)
    for left_out in range(12):
        keep = torch.arange(12) != left_out
        X, y = rows[keep], values[keep]
        # The written-out problem: weights are penalised, the bias is not.
        both = torch.cat([X, torch.ones(11, 1, dtype=torch.float64)], dim=1)
        penalty = torch.diag(torch.tensor([4.0] * 5 + [0.0], dtype=torch.float64))
        solution = torch.linalg.solve(both.T @ both + penalty, both.T @ y)
        predicted = rows[left_out] @ solution[:5] + solution[5]
        assert float(line.left_out_errors[left_out]) == pytest.approx(
            float(values[left_out] - predicted), rel=1e-6
        )


def test_intervals_hold_the_number_as_often_as_promised():
    features, values = measured(count=2000, noise=1.0)
    line = fit_number_line(features[:200], values[:200])
    for coverage in (0.8, 0.95):
        inside = (line(features[200:]) - values[200:]).abs() <= line.half_width(coverage)
        # 200 examples fix the quantile within about 3 points.
        assert abs(float(inside.double().mean()) - coverage) < 0.05


def test_too_few_examples_promise_nothing():
    features, values = measured(count=10)
    assert math.isinf(fit_number_line(features, values).half_width(0.95))
    with pytest.raises(ConfigError):
        fit_number_line(features, values).half_width(1.0)
    with pytest.raises(DataError):
        fit_number_line(features[:2], values[:2])


def test_numbers_that_features_do_not_know_have_no_r2():
    random = np.random.default_rng(0)
    line = fit_number_line(
        torch.from_numpy(random.normal(size=(50, 20))), torch.from_numpy(random.normal(size=50))
    )
    assert line.r2 < 0.2
