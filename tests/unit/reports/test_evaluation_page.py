"""The page of an evaluation."""

import numpy as np

from vitrine.evaluation.classification import score_single_label
from vitrine.evaluation.metrics import Interval, compared
from vitrine.reports.evaluation_page import claim_words, matrix_cells


def test_names_in_wide_letters_have_room_beside_the_confusion_matrix():
    logits, labels = np.eye(3)[[0, 1, 2, 1]] * 4, np.array([0, 1, 2, 2])
    narrow, wide = (
        matrix_cells(score_single_label(logits, labels, classes=names, resamples=2))
        for names in (("cat", "dog", "abcdef"), ("cat", "dog", "阿比西尼亚猫"))
    )
    assert narrow["size"] == wide["size"] == 15 and wide["names"][2] == "阿比西尼亚猫"
    assert wide["margin"] - narrow["margin"] >= 6 * 0.5 * 15  # a wide letter is as wide as its font is high


def test_a_claim_is_doubted_only_beyond_the_interval_of_the_accuracy():
    few, many = Interval(value=0.67, low=0.3, high=0.9), Interval(value=0.67, low=0.64, high=0.7)
    assert compared(0.58, many).startswith("more often")
    assert compared(0.75, many).startswith("less often")
    assert compared(0.66, many).startswith("about as often")
    assert compared(0.58, few).endswith("within the 95 % interval")
    figures = score_single_label(
        np.eye(2)[[0, 1]] * 0.1, np.array([0, 1]), classes=("cat", "dog"), resamples=2
    )
    words = claim_words(figures)
    assert "claims 52.5 %" in words and "100.0 % of 2 images" in words
