"""Axial attention (appendix D.6): rows, then columns, each with its own MLP."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitrine.errors import ConfigError
from vitrine.models import ViT, build, configure, create_model
from vitrine.models.cost import cost_of
from vitrine.models.packed import require_packable

SHAPE = {"width": 16, "depth": 2, "num_heads": 2, "mlp_width": 24, "patch_size": 8, "image_size": (24, 40)}


def axial(**options: object) -> ViT:
    torch.manual_seed(0)
    model = create_model(
        "ViT", num_classes=3, **{**SHAPE, "attention": "axial", "pooling": "average", **options}
    )  # type: ignore[arg-type]
    assert isinstance(model, ViT)
    return model.eval()


def changed_tokens(model: ViT, *, layers: int) -> torch.Tensor:
    """Return the grid of tokens that change after some blocks if the patch at row 1, column 2 does."""
    grid = model.config.grid_size
    tokens = torch.randn(1, grid[0] * grid[1], model.config.width, generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[0, grid[1] + 2] += 1
    for layer in range(layers):
        tokens, other = (model.run_block(one, grid, layer=layer) for one in (tokens, other))
    return (tokens != other).any(dim=-1).view(grid)


def test_the_first_block_mixes_rows_and_the_second_columns() -> None:
    model = axial()
    row = torch.zeros(3, 5, dtype=torch.bool)
    row[1] = True
    assert torch.equal(changed_tokens(model, layers=1), row)
    assert changed_tokens(model, layers=2).all()


def test_every_line_attends_as_a_sequence_of_its_own() -> None:
    model = axial()
    images = torch.randn(2, 3, 24, 40, generator=torch.Generator().manual_seed(2))
    tokens = model.features(images)["embedded"]
    block = model.blocks[0]
    rows = torch.cat([block(row) for row in tokens.split(5, dim=1)], dim=1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(model.run_block(tokens, (3, 5), layer=0), rows, rtol=1e-5, atol=1e-6)
    grid = rows.view(2, 3, 5, -1)
    columns = torch.stack([model.blocks[1](grid[:, :, place]) for place in range(5)], dim=2)
    expected = columns.reshape(2, 15, -1)
    torch.testing.assert_close(model.run_block(rows, (3, 5), layer=1), expected, rtol=1e-5, atol=1e-6)


def test_attention_of_a_row_is_zero_outside_it() -> None:
    model = axial()
    images = torch.randn(1, 3, 24, 40, generator=torch.Generator().manual_seed(3))
    (_, rows), (_, columns) = model.attention(images)
    place = torch.arange(15)
    assert torch.equal(rows[0, 0] > 0, place[:, None] // 5 == place[None] // 5)
    assert torch.equal(columns[0, 0] > 0, place[:, None] % 5 == place[None] % 5)


@pytest.mark.parametrize("name", ["Axial-ViT-B/32", "Axial-ViT-B/16"])
def test_counted_multiply_adds_are_those_that_a_forward_pass_makes(name: str) -> None:
    config = configure(name, image_size=64, width=48, mlp_width=96, num_heads=3)
    with torch.device("meta"):
        model, images = build(config), torch.zeros(1, 3, 64, 64)
    with FlopCounterMode(display=False) as counter:
        model(images)
    # The counter has two operations per multiply-add, and all that are not matrix products at none.
    assert counter.get_total_flops() == 2 * cost_of(config).macs


def test_an_axial_model_needs_more_compute_than_its_plain_counterpart_as_in_the_paper() -> None:
    for patch in (16, 32):
        plain, lines = cost_of(configure(f"ViT-B/{patch}")), cost_of(configure(f"Axial-ViT-B/{patch}"))
        assert 1.9 < lines.macs / plain.macs < 2
        assert 1.9 < lines.params / plain.params < 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pooling": "class_token"}, "no row or column"),
        ({"num_registers": 2}, "no row or column"),
        ({"depth": 3}, "even depth"),
        ({"positions": "relative", "position_placement": "every_layer"}, "relative or rotary"),
        ({"rotary": "dinov3", "num_heads": 4}, "relative or rotary"),
    ],
)
def test_what_does_not_go_with_lines_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        axial(**options)


def test_pictures_of_any_shape_are_refused() -> None:
    with pytest.raises(ConfigError, match="axial attention"):
        require_packable(axial().config)
