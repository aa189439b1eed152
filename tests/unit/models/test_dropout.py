"""Random numbers that belong to an image."""

import pytest
import torch

from vitrine.models.dropout import Dropout, StochasticDepth, image_keys, number_random_layers, randomness_of

CPU = torch.device("cpu")
KEYS = image_keys(0, first=0, count=64, device=CPU)


def is_independent(first: torch.Tensor, second: torch.Tensor, rate: float) -> bool:
    """Whether two masks agree as often as independent ones do, within five deviations."""
    deviation = rate * (1 - rate) / first.numel() ** 0.5
    both = (first.double() * second.double()).mean().item()
    return abs(both - first.double().mean().item() * second.double().mean().item()) < 5 * deviation


def dropped(layer: torch.nn.Module, keys: torch.Tensor, *shape: int) -> torch.Tensor:
    with randomness_of(keys):
        return layer.train()(torch.ones(shape)) == 0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_values_are_dropped_at_the_rate_and_the_others_scaled(rate: float) -> None:
    with randomness_of(KEYS):
        out = Dropout(rate).train()(torch.ones(64, 50, 40))
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / (1 - rate)).item()}
    share = (out == 0).double().mean().item()
    assert abs(share - rate) < 4 * (rate * (1 - rate) / out.numel()) ** 0.5  # four deviations


@pytest.mark.parametrize("layer", [Dropout(0.3), StochasticDepth(0.3)], ids=["dropout", "stochastic depth"])
def test_a_part_of_a_batch_draws_what_the_whole_does(layer: torch.nn.Module) -> None:
    whole = dropped(layer, KEYS, 64, 6, 8)
    parts = [
        dropped(layer, KEYS[start : start + 7], len(KEYS[start : start + 7]), 6, 8)
        for start in range(0, 64, 7)
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_views_of_an_image_side_by_side_draw_apart_and_in_any_part_of_a_batch_alike() -> None:
    layer = Dropout(0.5)
    whole = dropped(layer, KEYS, 128, 6, 80).view(64, 2, -1)
    assert is_independent(whole[:, 0], whole[:, 1], 0.5)
    assert torch.equal(dropped(layer, KEYS[8:10], 4, 6, 80).view(2, 2, -1), whole[8:10])


def test_images_layers_steps_and_seeds_draw_apart() -> None:
    model = torch.nn.Sequential(Dropout(0.3), Dropout(0.3))
    number_random_layers(model)
    first = dropped(model[0], KEYS, 64, 40, 50)
    later = image_keys(0, first=64, count=64, device=CPU)
    elsewhere = image_keys(1, first=0, count=64, device=CPU)
    others = (
        dropped(model[1], KEYS, 64, 40, 50), dropped(model[0], later, 64, 40, 50),
        dropped(model[0], elsewhere, 64, 40, 50), first.roll(1, dims=0), first.roll(1, dims=1), first.roll(1, dims=2),
    )  # fmt: skip
    assert all(is_independent(first, other, 0.3) for other in others)


def test_no_two_images_of_a_long_run_near_each_other_have_one_key() -> None:
    keys = image_keys(3, first=2**32 - 5000, count=10_000, device=CPU)
    assert len(set(keys.tolist())) > 9_990  # of 2^32 words: one pair in 86 such draws is equal
    assert torch.equal(keys[5000:5010], image_keys(3, first=2**32, count=10, device=CPU))


def test_without_keys_torchs_generator_decides() -> None:
    layer = Dropout(0.5).train()
    torch.manual_seed(0)
    first = layer(torch.ones(4, 100))
    torch.manual_seed(0)
    assert torch.equal(first, layer(torch.ones(4, 100)))
    assert not torch.equal(first, layer(torch.ones(4, 100)))
