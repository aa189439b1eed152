"""The assignment of each target to a query of its own at the lowest cost (Hungarian method)."""

import numpy as np
from numpy.typing import NDArray


def assigned(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return for each target (column) the query (row) that it is assigned: costs (Q, M), at least as many rows.

    Shortest augmenting paths (Jonker and Volgenant): targets are added one after the other, each along the cheapest
    chain of reassignments; the inner loop is one vectorised pass over the queries.
    """
    num_queries, num_targets = costs.shape
    assert num_targets <= num_queries
    of_query = np.full(num_queries, -1, dtype=np.int64)
    target_price, query_price = np.zeros(num_targets), np.zeros(num_queries)
    for first in range(num_targets):
        distance = np.full(num_queries, np.inf)
        came_from = np.full(num_queries, -1, dtype=np.int64)
        is_done = np.zeros(num_queries, dtype=bool)
        target, last, reached = first, -1, 0.0
        while target >= 0:
            through = reached + costs[:, target] - target_price[target] - query_price
            is_shorter = ~is_done & (through < distance)
            distance[is_shorter], came_from[is_shorter] = through[is_shorter], last
            last = int(np.where(is_done, np.inf, distance).argmin())
            reached = float(distance[last])
            is_done[last] = True
            target = int(of_query[last])
        # Prices keep every assigned pair tight, and no pair cheaper than its prices.
        settled = np.flatnonzero(is_done)
        for query in settled:
            if of_query[query] >= 0:
                target_price[of_query[query]] += reached - distance[query]
            query_price[query] -= reached - distance[query]
        target_price[first] += reached
        while last >= 0:  # along the chain, each query takes the target of the one before it
            before = int(came_from[last])
            of_query[last] = first if before < 0 else of_query[before]
            last = before
    result = np.empty(num_targets, dtype=np.int64)
    taken = np.flatnonzero(of_query >= 0)
    result[of_query[taken]] = taken
    return result
