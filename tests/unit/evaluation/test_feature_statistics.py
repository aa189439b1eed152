"""Rank and spread of a representation: known answers for known shapes."""

import pytest
import torch

from vitrine.evaluation.feature_statistics import effective_rank, spread


def test_equal_singular_values_count_as_that_many_directions() -> None:
    basis = torch.eye(5, 32)
    rows = torch.cat([basis, -basis])  # centred, five directions of the same length
    assert effective_rank(rows) == pytest.approx(5, rel=1e-9)
    assert effective_rank(rows + 100) == pytest.approx(5, rel=1e-4)  # float32 of 100 has five digits left


def test_rank_equals_the_written_out_entropy() -> None:
    rows = torch.diag(torch.tensor([3.0, 1.0])).repeat(2, 1) * torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    shares = torch.tensor([0.75, 0.25]).double()
    assert effective_rank(rows) == pytest.approx(float(torch.exp(-(shares * shares.log()).sum())), rel=1e-9)


def test_collapsed_features_have_no_rank_and_no_spread() -> None:
    rows = torch.randn(1, 16).expand(40, 16)
    assert effective_rank(rows) == 0
    assert spread(rows) == pytest.approx(0, abs=1e-12)


def test_directions_of_every_kind_have_a_spread_of_one_whatever_their_length() -> None:
    torch.manual_seed(0)
    rows = torch.randn(4000, 64)
    assert spread(rows) == pytest.approx(1, abs=0.01)
    assert spread(7 * rows) == pytest.approx(spread(rows), rel=1e-9)
