"""The ObjectNet protocol against a written-out reference, and the matching of a model's classes with ImageNet's."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from vitrine.errors import DataError
from vitrine.evaluation.imagenet_order import LACKING, places_of_imagenet
from vitrine.evaluation.objectnet import any_among_top, score_objectnet

NAMES = [f"thing {place}, other word {place}" for place in range(1000)]
IDS = [
    line.split()[0]
    for line in (Path(__file__).parents[3] / "weights" / "imagenet.txt").read_text().splitlines()
    if line
]


def written_out(
    logits: NDArray[np.float32], labels: NDArray[np.int32], accepted: Sequence[Sequence[int]], k: int
) -> float:
    """The protocol in plain Python: sort all classes, take k, look for any class of the object."""
    right = 0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        ranked = sorted(range(len(row)), key=lambda place: (-row[place], place))
        right += bool(set(ranked[:k]) & set(accepted[label]))
    return right / len(labels)


def maximum_per_object(
    logits: NDArray[np.float32], labels: NDArray[np.int32], accepted: Sequence[Sequence[int]]
) -> float:
    """The easier protocol of others: the object whose best class has the highest logit."""
    answers = np.stack([logits[:, list(places)].max(axis=1) for places in accepted], axis=1).argmax(axis=1)
    return float((answers == labels).mean())


@pytest.fixture
def case() -> tuple[NDArray[np.float32], NDArray[np.int32], list[list[int]]]:
    rng = np.random.default_rng(0)
    accepted = [[3, 8], [11], [0, 19, 5], [14]]
    labels = rng.integers(0, len(accepted), 400).astype(np.int32)
    logits = rng.normal(size=(400, 20)).astype(np.float32)
    for row, label in enumerate(labels):  # otherwise top-1 would be near 0
        logits[row, accepted[label][0]] += 1
    return logits, labels, accepted


def test_both_accuracies_equal_the_written_out_protocol(case) -> None:  # type: ignore[no-untyped-def]
    logits, labels, accepted = case
    figures = score_objectnet(logits, labels, accepted, objects="abcd", class_names=NAMES)
    assert figures.top1.value == written_out(logits, labels, accepted, 1)
    assert figures.top5.value == written_out(logits, labels, accepted, 5)
    assert 0.1 < figures.top1.value < figures.top5.value < 1
    assert figures.top1.low < figures.top1.value < figures.top1.high
    assert figures.num_mapped_classes == 7


def test_ties_are_broken_as_in_the_written_out_protocol(case) -> None:  # type: ignore[no-untyped-def]
    logits, labels, accepted = case
    coarse = np.round(logits)
    for k in (1, 5):
        correct = any_among_top(coarse, labels, accepted, k=k)
        assert correct.mean() == written_out(coarse, labels, accepted, k)


def test_the_accuracy_among_mapped_classes_is_that_of_the_maximum_per_object(case) -> None:  # type: ignore[no-untyped-def]
    logits, labels, accepted = case
    figures = score_objectnet(logits, labels, accepted, objects="abcd", class_names=NAMES)
    assert figures.top1_among_mapped.value == pytest.approx(maximum_per_object(logits, labels, accepted))
    assert figures.top1_among_mapped.value > figures.top1.value


def test_a_class_that_no_object_has_takes_an_answer_away() -> None:
    logits = np.array([[0.0, 1.0, 2.0]], dtype=np.float32)  # class 2 is of no object
    figures = score_objectnet(logits, np.array([0]), [[1], [0]], objects="ab", class_names="xyz")
    assert figures.top1.value == 0
    assert figures.top1_among_mapped.value == 1


def test_any_class_of_an_object_counts() -> None:
    logits = np.eye(4, dtype=np.float32)
    correct = any_among_top(logits, np.array([0, 0, 1, 1]), [[0, 1], [2]], k=1)
    assert correct.tolist() == [True, True, True, False]


def test_figures_by_object_have_intervals_and_leave_out_objects_without_pictures(case) -> None:  # type: ignore[no-untyped-def]
    logits, labels, accepted = case
    kept = labels != 1
    figures = score_objectnet(logits[kept], labels[kept], accepted, objects="abcd", class_names=NAMES)
    assert [one.name for one in figures.per_object] == ["a", "c", "d"]
    assert sum(one.num_images for one in figures.per_object) == figures.num_images == kept.sum()
    mean = np.average(
        [one.top1.value for one in figures.per_object], weights=[one.num_images for one in figures.per_object]
    )
    assert mean == pytest.approx(figures.top1.value)
    assert all(one.top1.low <= one.top1.value <= one.top1.high for one in figures.per_object)
    assert figures.per_object[1].imagenet_classes == (NAMES[0], NAMES[19], NAMES[5])


def test_no_pictures_are_refused() -> None:
    with pytest.raises(DataError, match="no images"):
        score_objectnet(np.zeros((0, 3)), np.zeros(0, dtype=int), [[0]], objects="a", class_names="xyz")


def test_classes_are_found_by_wordnet_id_by_all_synonyms_and_by_the_first() -> None:
    order = np.random.default_rng(0).permutation(1000)  # output -> standard place
    wanted = np.argsort(order)
    for words in (sorted(IDS), NAMES, [name.partition(",")[0].upper().replace(" ", "_") for name in NAMES]):
        shuffled = [words[place] for place in order]
        assert (places_of_imagenet(shuffled, NAMES, num_outputs=1000) == wanted).all()


def test_outputs_without_names_are_in_standard_order() -> None:
    assert (places_of_imagenet(None, NAMES, num_outputs=1000) == np.arange(1000)).all()


def test_a_name_of_two_classes_matches_neither_and_a_renamed_class_is_lacking() -> None:
    names = ["crane", "crane", "sunglass", *NAMES[3:]]
    classes = ["crane", "crane", "a new word", *NAMES[3:]]
    places = places_of_imagenet(classes, names, num_outputs=1000)
    assert places[:4].tolist() == [LACKING, LACKING, LACKING, 3]


@pytest.mark.parametrize(
    ("classes", "num_outputs", "word"),
    [
        (["cat", "dog"], 2, "2 classes"),
        (None, 21843, "21,843 classes"),
        (None, None, "no classification head"),
        ([f"colour {k}" for k in range(1000)], 1000, "colour 0"),
        ([f"n{k:08d}" for k in range(1000)], 1000, "n00000000"),
    ],
)
def test_a_model_without_imagenets_classes_is_refused(
    classes: list[str] | None, num_outputs: int | None, word: str
) -> None:
    with pytest.raises(DataError, match=word):
        places_of_imagenet(classes, NAMES, num_outputs=num_outputs)
