"""Rank and spread of a representation: known answers for known shapes."""

import math

import pytest
import torch

from vitrine.evaluation.feature_statistics import collapse_warning, effective_rank, spread
from vitrine.objectives.dino import output_information


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


def test_outputs_tell_nothing_where_all_images_have_the_same_one_and_all_where_each_has_its_own() -> None:
    uniform, single = torch.full((8,), 1 / 8), torch.eye(8)[0]
    assert output_information(uniform, math.log(8)) == pytest.approx(
        0, abs=1e-6
    )  # all equally likely, always
    assert output_information(single, 0.0) == 0  # one prototype, always
    assert output_information(uniform, 0.0) == pytest.approx(math.log(8), abs=1e-6)  # each image its own


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"rank": 1.2, "spread": 0.5}, "features use 1.20 directions"),
        ({"rank": 20.0, "spread": 0.001}, "spread of features is 0.001"),
        (
            {"rank": 20.0, "spread": 0.5, "information": 0.01, "num_outputs": 64},
            "outputs carry 0.2 %",
        ),
    ],
)
def test_any_sign_of_collapse_is_said_in_one_sentence(found: dict[str, float], words: str) -> None:
    said = collapse_warning(**found)  # type: ignore[arg-type]
    assert said is not None and said.startswith("The representation has collapsed: ") and words in said


def test_a_fresh_model_and_a_trained_one_raise_no_alarm() -> None:
    assert collapse_warning(rank=6.0, spread=0.14) is None
    assert collapse_warning(rank=27.0, spread=0.5, information=0.5, num_outputs=512) is None
