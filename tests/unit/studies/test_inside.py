"""Numbers from inside a model: positions by offset, attention by head."""

import math

import pytest
import torch

from vitrine.models import ViT, create_model
from vitrine.studies.inside import distance_by_head, similarity_by_offset


def small(**options: object) -> ViT:
    torch.manual_seed(0)
    shape = {"width": 16, "depth": 2, "num_heads": 2, "mlp_width": 16, "patch_size": 8, "image_size": 32}
    model = create_model("ViT", num_classes=3, **{**shape, **options})  # type: ignore[arg-type]
    assert isinstance(model, ViT)
    return model.eval()


def test_similarities_are_means_over_all_pairs_of_patches_with_one_offset() -> None:
    model = small()
    by_offset = similarity_by_offset(model)
    assert len(by_offset) == 15
    table = torch.nn.functional.normalize(model.positions[0]((4, 4)).detach()[0, 1:].double(), dim=-1).view(
        4, 4, -1
    )
    beside = [float(table[row, column] @ table[row, column + 2]) for row in range(4) for column in range(2)]
    assert by_offset["similarity_0_2"] == pytest.approx(sum(beside) / len(beside))
    diagonal = [float(table[0, 0] @ table[3, 3]), float(table[0, 3] @ table[3, 0])]
    assert by_offset["similarity_3_3"] == pytest.approx(sum(diagonal) / 2)


def test_a_head_that_attends_to_all_patches_alike_has_the_mean_distance_between_patches() -> None:
    model = small()
    with torch.no_grad():
        for block in model.blocks:
            block.attention.to_qkv.weight.zero_()  # type: ignore[union-attr,operator]
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    cells = [(row, column) for row in range(4) for column in range(4)]
    mean = sum(8 * math.dist(one, other) for one in cells for other in cells) / 256
    distances = distance_by_head(model, images)
    assert distances == {
        f"distance_{layer}_{head}": pytest.approx(mean) for layer in (0, 1) for head in (0, 1)
    }
