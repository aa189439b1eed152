"""Rotary positions: what turns, by what, and how training moves the coordinates."""

import math

import pytest
import torch
from unit.models.small import small_model

from vitrine.models import ViT
from vitrine.models.dropout import image_keys, number_random_layers, randomness_of
from vitrine.models.rotary import RotaryPositions, coordinates

DINOV3, EVA = "rotary positions (DINOv3)", "rotary positions (EVA-02)"


def rotary_of(kind: str, **changes: float) -> RotaryPositions:
    model = small_model(kind)
    assert isinstance(model, ViT) and model.rotary is not None
    for name, value in changes.items():
        setattr(model.rotary, name, value)
    return model.rotary


@pytest.mark.parametrize("kind", [DINOV3, EVA])
def test_products_depend_on_the_distance_of_patches_alone_and_lengths_stay(kind: str) -> None:
    rotary = rotary_of(kind).eval()
    rotation = rotary((4, 4), num_images=1)
    leading = rotary.num_leading_tokens
    q, k = torch.randn(2, 1, 1, 1, 8)
    turned_q, turned_k = (rotation.turned(one.expand(1, 1, leading + 16, 8))[0, 0] for one in (q, k))
    torch.testing.assert_close(turned_q[:leading], q[0, 0].expand(leading, 8))
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(leading + 16))
    product = turned_q[leading:] @ turned_k[leading:].T
    # From (0, 1) to (1, 3) as from (2, 0) to (3, 2): patches 1 to 7, and 8 to 14.
    assert float(product[1, 7]) == pytest.approx(float(product[8, 14]), abs=1e-5)
    assert float(product[1, 7]) != pytest.approx(float(product[7, 1]), abs=1e-3)


def test_coordinates_move_per_image_within_their_bounds_in_training_only() -> None:
    rotary = rotary_of(DINOV3, shift=0.25, jitter=1.5, rescale=2.0)
    number_random_layers(rotary)
    keys = image_keys(0, first=0, count=64, device=torch.device("cpu"))
    places = coordinates((4, 4), "dinov3")
    with randomness_of(keys):
        moved = rotary.moved(places, rotary.draw(64, 5, device=places.device))
        again, rows = rotary((4, 4), num_images=64), rotary((4, 4), num_images=64)
    with randomness_of(keys[10:]):
        later = rotary((4, 4), num_images=54)
    torch.testing.assert_close(again.cos, rows.cos)
    torch.testing.assert_close(again.cos[10:], later.cos)  # an image's draw is its own, whatever the batch
    spread = (moved[:, -1] - moved[:, 0]) / (places[0, -1] - places[0, 0])  # of each axis
    assert float(spread.min()) >= 1 / 3 and float(spread.max()) <= 3
    assert (spread[:, 0] - spread[:, 1]).abs().max() > 0.1  # jitter is per axis
    assert float(spread.log().std()) > 0.1 and float(moved.mean(dim=1).abs().max()) <= 0.25 * 3
    assert torch.equal(rotary.eval()((4, 4), num_images=64).cos, rotary.table[0])


def test_eva_stretches_any_grid_to_that_of_pre_training() -> None:
    rotary = rotary_of(EVA).eval()
    assert rotary.stretched_to == (3, 3)
    angles = torch.atan2(*(rotary((6, 6), num_images=1)[i][0, 0, -1] for i in (1, 0)))
    assert float(angles[0]) == pytest.approx(
        5 * 3 / 6 - (2 * math.pi if math.pi < 5 * 3 / 6 else 0), abs=1e-5
    )
