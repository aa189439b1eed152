"""Masks of objects from queries, at the size of the picture, and their overlaps with the true ones."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitrine.data.decoding.annotation import Annotation
from vitrine.data.decoding.mask_planes import add_mask, empty_planes, unpacked
from vitrine.evaluation import instance_predictions
from vitrine.evaluation.instance_predictions import instances_of
from vitrine.evaluation.objects import BoxPrediction, by_class, overlaps_of
from vitrine.evaluation.reading_ahead import ReadPicture

READ = ReadPicture(index=4, resized=torch.zeros(3, 16, 16, dtype=torch.uint8), size=(36, 48))


def predicted(masks: torch.Tensor, probabilities: torch.Tensor) -> BoxPrediction:
    return instances_of(masks, probabilities, READ, window=(16, 16), filled=(12, 16))


def test_pairs_of_query_and_class_are_sorted_by_class_times_certainty_of_the_mask() -> None:
    generator = torch.Generator().manual_seed(0)
    masks = 4 * torch.randn(5, 4, 4, generator=generator)
    masks[3] = -9.0  # no pixel
    probabilities = torch.rand(5, 3, generator=generator)
    prediction = predicted(masks, probabilities)
    whole = F.interpolate(masks[None], size=(16, 16), mode="bilinear")[:, :, :12]
    shown = F.interpolate(whole, size=(36, 48), mode="bilinear")[0]
    certainty = torch.stack(
        [one[one > 0].sigmoid().mean() if (one > 0).any() else torch.tensor(0.0) for one in shown]
    )
    scores = (probabilities * certainty[:, None]).flatten()
    order = [place for place in scores.argsort(descending=True).tolist() if place // 3 != 3]
    assert prediction.labels.tolist() == [place % 3 for place in order]
    np.testing.assert_allclose(prediction.scores, scores[order], rtol=1e-5)
    assert prediction.planes is not None
    np.testing.assert_array_equal(
        unpacked(prediction.planes, len(order)), np.stack([shown[place // 3] > 0 for place in order])
    )
    assert (prediction.index, prediction.size) == (4, (36, 48))


def test_masks_are_enlarged_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    masks, probabilities = torch.randn(20, 4, 4), torch.rand(20, 2)
    whole = predicted(masks, probabilities)
    monkeypatch.setattr(instance_predictions, "MOST_NUMBERS", 1)
    parts = predicted(masks, probabilities)
    np.testing.assert_allclose(whole.scores, parts.scores, rtol=1e-5)  # sums are added in another order
    assert whole.planes is not None and parts.planes is not None
    assert (whole.planes == parts.planes).all()


def test_a_picture_in_which_nothing_is_sure_has_no_object() -> None:
    prediction = predicted(torch.randn(5, 4, 4), torch.zeros(5, 3))
    assert (len(prediction.boxes), len(prediction.scores)) == (0, 0)
    assert prediction.planes is not None
    assert prediction.planes.shape == (0, 36, 48)


def test_pixels_that_count_nowhere_are_neither_for_nor_against_a_mask() -> None:
    true, own, is_void = (np.zeros((8, 10), dtype=bool) for _ in range(3))
    true[2:6, 2:6], own[2:6, 2:9], is_void[:, 6:8] = True, True, True
    planes = [empty_planes(1, (8, 10)) for _ in range(2)]
    for one, mask in zip(planes, (true, own), strict=True):
        add_mask(one, 0, mask)
    boxes = np.array([[2, 2, 6, 6]], dtype=np.float32)
    annotation = Annotation(
        size=(8, 10), boxes=boxes, labels=np.array([1]), is_ignored=np.array([False]), planes=planes[0],
        is_void=is_void,
    )  # fmt: skip
    prediction = BoxPrediction(
        index=0, size=(8, 10), boxes=boxes, labels=np.array([1]), scores=np.array([0.9], dtype=np.float32),
        planes=planes[1],
    )  # fmt: skip
    # 16 pixels are right; of the 28 predicted ones 8 are void.
    np.testing.assert_allclose(overlaps_of(annotation, prediction), [[16 / 20]])
    _, detections = by_class(annotation, prediction)[1]
    assert detections.areas is not None
    np.testing.assert_array_equal(detections.areas, [20])
