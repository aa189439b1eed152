"""A family of models from outside the package: one file, one line of registration."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vitrine
from vitrine.errors import CheckpointError, ConfigError
from vitrine.models import Family, register_family
from vitrine.models.cost import Cost, cost_of
from vitrine.models.families import FAMILIES


@dataclass(frozen=True, kw_only=True)
class MeanConfig:
    image_size: tuple[int, int] = (16, 16)
    channels: int = 3
    num_classes: int | None = 4
    representation_width: int = 6
    activation_checkpointing: bool = False


class MeanColour(nn.Module):
    """Classify by the mean colour."""

    def __init__(self, config: MeanConfig) -> None:
        super().__init__()
        self.config = config
        self.body = nn.Linear(config.channels, config.representation_width)
        self.head = nn.Linear(config.representation_width, config.num_classes) if config.num_classes else None

    def features(self, images: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.body(images.mean(dim=(2, 3))))
        return {"representation": hidden} | ({"logits": self.head(hidden)} if self.head is not None else {})

    def forward(self, images: Tensor) -> Tensor:
        found = self.features(images)
        return found.get("logits", found["representation"])


def mean_cost(config: MeanConfig) -> Cost:
    width, classes = config.representation_width, config.num_classes or 0
    params = (config.channels + 1) * width + (width + 1) * classes
    return Cost(params=params, macs=params, tokens=None, activations=width, checkpointed_activations=width)


FAMILY = Family(
    kind="Mean", config=MeanConfig, build=MeanColour, cost=mean_cost, variants={"Mean-S": MeanConfig()}
)


@pytest.fixture
def registered() -> Iterator[None]:
    register_family(FAMILY)
    yield
    del FAMILIES["Mean"]


@pytest.mark.usefixtures("registered")
def test_a_family_from_outside_is_created_saved_loaded_and_adapted(tmp_path: Path) -> None:
    model = vitrine.create_model("Mean-S", num_classes=4).eval()
    assert isinstance(model, MeanColour)
    assert cost_of(model.config).params == sum(p.numel() for p in model.parameters())
    folder = vitrine.save(model, tmp_path / "mean", classes=["a", "b", "c", "d"])
    loaded = vitrine.load(folder)
    assert loaded.record.variant == "Mean-S"
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(loaded.model(images), model(images))
    other = vitrine.load(folder, num_classes=7, image_size=32)
    assert other.model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    with pytest.raises(ConfigError) as caught:
        vitrine.load(folder, channels=1)
    assert caught.value.option == "channels"


@pytest.mark.usefixtures("registered")
def test_a_kind_is_registered_once() -> None:
    with pytest.raises(ConfigError, match="Mean"):
        register_family(FAMILY)


def test_weights_of_a_family_that_is_not_registered_say_which(tmp_path: Path) -> None:
    register_family(FAMILY)
    try:
        folder = vitrine.save(vitrine.create_model("Mean-S"), tmp_path / "mean")
    finally:
        del FAMILIES["Mean"]
    with pytest.raises(CheckpointError, match="family 'Mean'"):
        vitrine.load(folder)


def test_a_config_without_what_training_reads_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Short:
        image_size: tuple[int, int]

    with pytest.raises(ConfigError, match=r"^Short .*channels, num_classes, activation_checkpointing"):
        register_family(Family(kind="Short", config=Short, build=nn.Identity, cost=mean_cost))
