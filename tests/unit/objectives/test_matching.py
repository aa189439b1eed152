"""The assignment of targets to queries costs as little as SciPy's."""

import numpy as np
import pytest

from vitrine.objectives.matching import assigned


@pytest.mark.parametrize("seed", range(60))
def test_the_assignment_costs_as_little_as_scipys(seed: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(seed)
    queries = int(rng.integers(1, 40))
    targets = int(rng.integers(0, queries + 1))
    costs = rng.normal(size=(queries, targets))
    if seed % 3 == 0:  # with ties
        costs = costs.round()
    found = assigned(costs)
    assert len(set(found.tolist())) == targets
    rows, columns = optimize.linear_sum_assignment(costs)
    assert costs[found, np.arange(targets)].sum() == pytest.approx(costs[rows, columns].sum())
