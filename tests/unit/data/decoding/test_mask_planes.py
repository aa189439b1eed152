"""Masks as bits: packed and unpacked, areas, boxes and overlaps equal those of whole masks."""

import numpy as np
import pytest
import torch

from vitrine.data.decoding import mask_planes
from vitrine.data.decoding.mask_planes import (
    add_mask,
    chosen_planes,
    empty_planes,
    mask_areas,
    mask_boxes,
    mask_in,
    plane_overlaps,
    unpacked,
)
from vitrine.evaluation.instance_predictions import boxes_around, pack_into


def stack(count: int, seed: int = 0) -> np.ndarray:
    masks = np.random.default_rng(seed).random((count, 20, 30)) < 0.1
    masks[count // 2] = False
    return masks


def planes_of(masks: np.ndarray) -> np.ndarray:
    planes = empty_planes(len(masks), masks.shape[1:])
    for place, mask in enumerate(masks):
        add_mask(planes, place, mask)
    return planes


@pytest.mark.parametrize("count", [1, 8, 19])
def test_planes_hold_the_masks_and_their_areas_and_boxes(count: int) -> None:
    masks = stack(count)
    planes = planes_of(masks)
    assert planes.shape == (-(-count // 8), 20, 30)
    assert (unpacked(planes, count) == masks).all()
    assert all((mask_in(planes, place) == mask).all() for place, mask in enumerate(masks))
    assert (mask_areas(planes, count) == masks.sum(axis=(1, 2))).all()
    order = np.random.default_rng(1).permutation(count)[: count // 2 + 1]
    assert (unpacked(chosen_planes(planes, order), len(order)) == masks[order]).all()
    tensor = torch.from_numpy(masks)
    parts = torch.zeros(planes.shape, dtype=torch.uint8)
    pack_into(parts, tensor[:5], first=0)
    pack_into(parts, tensor[5:], first=5)
    assert (parts.numpy() == planes).all()
    boxes = mask_boxes(planes, count)
    assert (boxes_around(tensor).numpy() == boxes).all()
    for mask, (left, top, right, bottom) in zip(masks, boxes.astype(int), strict=True):
        inside = np.zeros_like(mask)
        inside[top:bottom, left:right] = True
        assert not (mask & ~inside).any()
        assert mask.any() == (bottom > top)
        if mask.any():
            assert (
                mask[top, :].any()
                and mask[bottom - 1].any()
                and mask[:, left].any()
                and mask[:, right - 1].any()
            )


def test_overlaps_are_counted_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    masks, others = stack(9), stack(3, seed=5)
    wanted = np.einsum("dhw,ghw->dg", masks.astype(int), others.astype(int))
    for most in (2**24, 500):
        monkeypatch.setattr(mask_planes, "MOST_UNPACKED", most)
        both, own, other = plane_overlaps(planes_of(masks), 9, planes_of(others), 3)
        assert (both == wanted).all()
        assert (own == masks.sum(axis=(1, 2))).all()
        assert (other == others.sum(axis=(1, 2))).all()
    assert plane_overlaps(planes_of(masks), 9, empty_planes(0, (20, 30)), 0)[0].shape == (9, 0)
