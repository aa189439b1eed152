"""One scoring of a split: what reports, training results and `vitrine evaluate` read."""

import numpy as np
import pytest
import torch

from vitrine.data.sources.in_memory import ArraySource
from vitrine.errors import ConfigError
from vitrine.evaluation.evaluators import majority_accuracy
from vitrine.evaluation.outputs import Outputs
from vitrine.evaluation.scoring import score_split

CLASSES = ("ant", "bee", "cat")


def source(labels) -> ArraySource:
    labels = np.array(labels, dtype=np.int32)
    images = np.zeros((len(labels), 2, 2, 3), dtype=np.uint8)
    return ArraySource(images, labels=labels, classes=CLASSES, address="data", root=None)


def outputs(rows, failures=()) -> Outputs:
    return Outputs(rows=torch.tensor(rows, dtype=torch.float32), failures=dict.fromkeys(failures, "is empty"))


def test_mistakes_are_listed_most_confident_first_and_unreadable_images_are_not_counted():
    rows = [[9, 0, 0], [0, 2, 0], [0, 0, 5], [0, 4, 0], [0, 0, 0]]
    score = score_split(outputs(rows, failures=[4]), source([0, 0, 0, 1, 2]), split="val")
    assert score.accuracy == pytest.approx(2 / 4)
    assert score.mistaken.tolist() == [2, 1]
    first, second = score.mistakes(5)
    assert (first.label, first.predicted, second.predicted) == ("ant", "cat", "bee")
    assert first.confidence == pytest.approx(float(torch.softmax(torch.tensor([0.0, 0, 5]), 0)[2]))
    assert score.mistakes(1) == (first,)


def test_classes_are_ranked_by_f1_lowest_first_and_those_without_images_are_left_out():
    score = score_split(outputs([[9, 0, 0], [0, 9, 0], [9, 0, 0]]), source([0, 1, 1]), split="val")
    assert score.class_measure == "f1"
    assert [name for name, _ in score.worst_classes] == ["ant", "bee"]
    assert score.worst_classes[0][1] == pytest.approx(2 / 3)
    assert score.mean_average_precision is None


def test_several_labels_per_image_are_ranked_by_average_precision_and_have_no_mistakes():
    labels = [[0, 1], [1, -1], [2, -1], [0, -1]]
    rows = [[3, 1, -3], [-3, 2, -3], [-3, -3, 3], [3, 1.5, -3]]
    score = score_split(outputs(rows), source(labels), split="val")
    assert score.class_measure == "average_precision"
    assert score.accuracy is None
    assert score.mistakes(3) == ()
    assert score.worst_classes[0] == ("bee", pytest.approx((1 + 2 / 3) / 2))
    assert score.mean_average_precision.value == pytest.approx((1 + (1 + 2 / 3) / 2 + 1) / 3)
    assert majority_accuracy(score) == {}
    with pytest.raises(ConfigError) as refused:
        score_split(outputs(rows), source(labels), split="val", real=[[0]] * 4)
    assert refused.value.option == "real"


def test_real_labels_of_unreadable_images_are_dropped_with_them():
    real = [[1], [0], [0, 1]]
    score = score_split(outputs([[9, 0, 0]] * 3, failures=[0]), source([0, 0, 1]), split="val", real=real)
    assert score.figures.real.value == 1.0
    assert score.figures.num_real_images == 2


def test_the_majority_is_counted_on_readable_images():
    score = score_split(outputs([[9, 0, 0]] * 4, failures=[3]), source([0, 0, 1, 1]), split="val")
    assert majority_accuracy(score) == {"majority_accuracy": pytest.approx(2 / 3)}
