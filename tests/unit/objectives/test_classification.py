"""Losses of classification against their formulas."""

import pytest
import torch

from vitrine.data.augmenting.augment import Augment
from vitrine.errors import ConfigError
from vitrine.objectives import LabelsObjective
from vitrine.objectives.classification import classification_loss
from vitrine.recipes.recipe import Recipe

LOGITS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def test_the_binary_loss_is_the_mean_over_classes_with_every_mixed_class_present() -> None:
    targets = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0], [0.1, 0.0, 0.9]])
    present = torch.tensor([[1.0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1]])
    chance = 1 / (1 + torch.exp(-LOGITS))
    expected = -(present * chance.log() + (1 - present) * (1 - chance).log()).mean(dim=1)
    torch.testing.assert_close(classification_loss(LOGITS, targets, kind="binary"), expected)


def test_the_binary_loss_takes_class_numbers_too() -> None:
    numbers = torch.tensor([0, 1, 2, 1])
    rows = torch.nn.functional.one_hot(numbers, 3).float()
    assert torch.equal(
        classification_loss(LOGITS, numbers, kind="binary"), classification_loss(LOGITS, rows, kind="binary")
    )


def test_smoothed_labels_which_would_make_every_class_present_are_refused() -> None:
    with pytest.raises(ConfigError):
        Recipe(name="one", objective=LabelsObjective(loss="binary"), augment=Augment(label_smoothing=0.1))
