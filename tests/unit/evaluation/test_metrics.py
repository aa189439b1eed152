import json

import numpy as np
import pytest

from vitrine.data.sources.file_list import FileList
from vitrine.data.sources.in_memory import ArraySource
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.classification import (
    score_multi_label,
    score_single_label,
)
from vitrine.evaluation.metrics import average_precisions, top_k_correct
from vitrine.evaluation.real import file_order, read_real, real_correct
from vitrine.evaluation.scoring import likely_label_errors
from vitrine.evaluation.test_sets import in_model_classes, in_model_numbers
from vitrine.reports.evaluation_page import confused_pairs


def source(labels, classes, names=None, root=None):
    if names is not None:
        return FileList(root, names, labels=np.array(labels, dtype=np.int32), classes=classes, address="data")
    labels = np.array(labels, dtype=np.int32)
    images = np.zeros((len(labels), 2, 2, 3), dtype=np.uint8)
    return ArraySource(images, labels=labels, classes=classes, address="data", root=None)


def test_a_model_that_scores_all_classes_alike_is_right_for_the_first_class_only():
    labels = np.arange(6)
    assert top_k_correct(np.zeros((6, 6)), labels, k=1).tolist() == [True] + [False] * 5
    assert top_k_correct(np.zeros((6, 6)), labels, k=5).tolist() == [True] * 5 + [False]


def test_top_5_is_left_out_where_there_are_five_classes_or_fewer():
    logits = np.eye(5)
    assert score_single_label(logits, np.arange(5), classes="abcde").top5 is None
    six = score_single_label(np.eye(6), np.arange(6), classes="abcdef")
    assert six.top5 is not None and six.top5.value == 1.0


def test_labels_outside_the_models_classes_are_refused():
    with pytest.raises(DataError, match=r"1 label.*3 classes,.*is 3;"):
        score_single_label(np.eye(4)[:, :3], np.array([0, 1, 2, 3]), classes="abc")


def test_macro_averages_count_only_classes_with_images_and_say_how_many():
    figures = score_single_label(np.eye(3)[[0, 1]], np.array([0, 1]), classes="abc")
    assert figures.macro_f1 == 1.0
    assert figures.num_classes_present == 2
    assert figures.per_class[2].recall is None


def test_classes_in_another_order_are_matched_by_name():
    data = source([0, 1, 2], ["ant", "bee", "cat"])
    matched = in_model_classes(data, ["cat", "ant", "dog", "bee"], num_outputs=4)
    assert matched.labels.tolist() == [1, 3, 0]


def test_a_class_that_the_model_does_not_know_is_refused_by_name():
    data = source([0, 1], ["ant", "bee"])
    with pytest.raises(DataError, match=r"label bee, .* 2 classes;") as refused:
        in_model_classes(data, ["ant", "bees"], num_outputs=2)
    assert refused.value.suggestions == ("bees",)
    with pytest.raises(DataError, match="bee") as refused:
        in_model_classes(data, ["ant", "bees"], num_outputs=2)
    assert in_model_classes(data, ["ant", "bees"], num_outputs=2, by_order=True) is data
    assert [advice.option for advice in refused.value.advice] == ["by_order"]


def test_a_model_without_names_needs_as_many_outputs_as_there_are_classes():
    data = source([0, 1], ["ant", "bee"])
    assert in_model_classes(data, None, num_outputs=2) is data
    with pytest.raises(DataError, match=r"2 classes .* 3 outputs"):
        in_model_classes(data, None, num_outputs=3)
    with pytest.raises(DataError, match=r"2 classes .* 3 outputs"):
        in_model_classes(data, ["x", "y", "z"], num_outputs=3, by_order=True)
    with pytest.raises(ConfigError, match="no classification head"):
        in_model_classes(data, None, num_outputs=None)


def test_images_without_a_label_are_refused_not_dropped():
    with pytest.raises(DataError, match=r"^data has 1.*without a label"):
        in_model_classes(source([0, -1], ["ant"]), None, num_outputs=1)


def test_real_leaves_out_empty_lists_and_accepts_any_label_of_the_list():
    counts, right = real_correct(np.array([3, 1, 0, 2]), [[1, 3], [], [2], [2]])
    assert counts.tolist() == [True, False, True, True]
    assert right.tolist() == [True, False, False, True]
    logits = np.eye(4)[[3, 1, 0, 2]]
    figures = score_single_label(logits, np.array([3, 1, 0, 2]), classes="abcd", real=[[1, 3], [], [2], [2]])
    assert figures.num_real_images == 3
    assert figures.real is not None and figures.real.value == pytest.approx(2 / 3)


def test_real_is_put_into_the_order_of_a_set_that_is_listed_by_class(tmp_path):
    names = [f"b/ILSVRC2012_val_{n:08d}.JPEG" for n in (2, 3)] + ["a/ILSVRC2012_val_00000001.JPEG"]
    data = source([1, 1, 0], ["a", "b"], names=names, root=tmp_path)
    (tmp_path / "real.json").write_text(json.dumps([[10], [20], [30]]))
    assert read_real(tmp_path / "real.json", data) == [[20], [30], [10]]
    assert file_order(source([0, 0], ["a"], names=["y.png", "x.png"], root=tmp_path)) == [1, 0]


def test_real_of_another_length_is_refused(tmp_path):
    (tmp_path / "real.json").write_text("[[1], [2]]")
    with pytest.raises(DataError, match=r"real\.json.*2 images,.*has 3;"):
        read_real(tmp_path / "real.json", source([0, 0, 0], ["a"]))


@pytest.mark.parametrize("text", ["{}", "[1, 2, 3]", '[["a"], [], []]', "not json", "[[-1], [], []]"])
def test_a_file_that_is_not_reals_is_refused(tmp_path, text):
    (tmp_path / "real.json").write_text(text)
    with pytest.raises(DataError, match=r"real\.json (must|is not) "):
        read_real(tmp_path / "real.json", source([0, 0, 0], ["a"]))


def test_two_files_of_one_name_make_the_order_of_real_unclear(tmp_path):
    data = source([0, 0], ["a"], names=["p/x.png", "q/x.png"], root=tmp_path)
    with pytest.raises(DataError, match=r"two files called x\.png"):
        file_order(data)


def test_real_numbers_follow_the_models_classes():
    data = source([0, 1], ["ant", "bee"])
    matched = in_model_classes(data, ["bee", "ant"], num_outputs=2)
    assert in_model_numbers([[0], [0, 1]], data, matched) == [[1], [1, 0]]
    with pytest.raises(DataError, match=r"real\.json names class 7,.*2 classes"):
        in_model_numbers([[7]], data, matched)


def test_a_class_that_no_image_has_is_left_out_of_the_mean_and_counted():
    labels = np.array([[0, 1], [1, -1], [-1, -1]], dtype=np.int32)
    figures = score_multi_label(np.eye(3), labels, classes="abc", resamples=5)
    assert figures.num_classes_present == 2
    assert figures.average_precision["c"] is None
    assert np.isnan(average_precisions(np.eye(3), np.zeros((3, 3), dtype=bool))).all()
    with pytest.raises(DataError, match=r"^label 3 .* 3 classes"):
        score_multi_label(np.eye(3), np.array([[3], [0], [1]]), classes="abc")


def test_a_planted_label_error_comes_first_and_clean_labels_raise_no_suspicion():
    random = np.random.default_rng(0)
    labels = np.arange(300) % 3
    probabilities = np.full((300, 3), 0.05)
    probabilities[np.arange(300), labels] = 0.9 - 0.1 * random.random(300)
    probabilities[17] = probabilities[200] = 0.05
    probabilities[17, labels[17]], probabilities[200, labels[200]] = 0.9, 0.89  # both above the class's mean
    assert len(likely_label_errors(probabilities, labels)) == 0
    wrong = labels.copy()
    wrong[[17, 200]] = (wrong[[17, 200]] + 1) % 3
    assert likely_label_errors(probabilities, wrong).tolist() == [17, 200]


def test_the_pairs_mixed_up_most_are_those_of_the_whole_matrix_sorted():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 12, 400)
    logits = generator.normal(size=(400, 12))
    figures = score_single_label(logits, labels, classes="abcdefghijkl", resamples=10)
    counts = figures.confusion.copy()
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:10]
    rows, columns = np.unravel_index(order, counts.shape)
    assert confused_pairs(figures) == [
        {"label": "abcdefghijkl"[i], "predicted": "abcdefghijkl"[j], "times": int(counts[i, j])}
        for i, j in zip(rows, columns, strict=True)
    ]
    assert confused_pairs(score_single_label(np.eye(3), np.arange(3), classes="abc", resamples=10)) == []
