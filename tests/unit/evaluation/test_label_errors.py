"""Wrong labels are found out of fold, and unlabelled images are chosen to be uncertain and different."""

import pytest
import torch

from vitrine.errors import DataError
from vitrine.evaluation.label_errors import find_label_errors, out_of_fold_probabilities, stratified_folds
from vitrine.evaluation.labelling import choose_to_label


def three_classes(count: int = 150) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    return 3 * torch.eye(3, 8)[labels] + 0.4 * torch.randn(count, 8, generator=generator), labels


def test_flipped_labels_are_the_most_suspicious_and_the_true_class_is_suggested():
    rows, labels = three_classes()
    noisy = labels.clone()
    flipped = [4, 40, 77, 101, 149]
    noisy[flipped] = (labels[flipped] + 1) % 3
    suspects = find_label_errors(rows, noisy, num_classes=3)
    assert len(suspects) >= 4  # an image below its class's usual confidence is not suspicious enough
    assert {one.index for one in suspects} <= set(flipped)
    assert all(one.suggested == labels[one.index] and one.label == noisy[one.index] for one in suspects)
    margins = [one.probability - one.label_probability for one in suspects]
    assert margins == sorted(margins, reverse=True)


def test_no_image_is_scored_by_a_fit_that_saw_its_label():
    rows, labels = three_classes(60)
    before = out_of_fold_probabilities(rows, labels, num_classes=3)
    changed = labels.clone()
    changed[7] = (labels[7] + 1) % 3
    fold = stratified_folds(labels, folds=5, seed=0)
    # The folds depend on the labels; a change within the same fold assignment leaves the image's own answer as it is.
    if torch.equal(stratified_folds(changed, folds=5, seed=0), fold):
        torch.testing.assert_close(out_of_fold_probabilities(rows, changed, num_classes=3)[7], before[7])
    counts = torch.stack([torch.bincount(fold[labels == k], minlength=5) for k in range(3)])
    assert counts.min() >= 3 and counts.max() <= 5


def test_too_few_images_are_refused():
    with pytest.raises(DataError):
        find_label_errors(torch.randn(6, 3), torch.tensor([0, 1] * 3), num_classes=2)


def test_uncertain_images_are_chosen_and_copies_are_not():
    generator = torch.Generator().manual_seed(0)
    sure = torch.randn(80, 6, generator=generator)
    doubtful = torch.randn(20, 6, generator=generator)
    copies = doubtful[:1].repeat(20, 1)
    rows = torch.cat([sure, doubtful, copies])
    probabilities = torch.cat(
        [torch.tensor([[0.99, 0.01]]).repeat(80, 1), torch.tensor([[0.5, 0.5]]).repeat(40, 1)]
    )
    chosen = choose_to_label(rows, probabilities, count=15, seed=0).tolist()
    assert len(set(chosen)) == 15
    assert sum(row >= 80 for row in chosen) >= 13  # of the uncertain ones
    assert sum(row >= 100 or row == 80 for row in chosen) <= 1  # of twenty-one copies


def test_more_than_there_are_gives_all_of_them_once():
    rows = torch.zeros(5, 3)
    assert sorted(choose_to_label(rows, torch.full((5, 2), 0.5), count=9).tolist()) == list(range(5))
