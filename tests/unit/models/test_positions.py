"""Position tables and their resampling."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import zoom

from vitrine.models.line_positions import Relative1D
from vitrine.models.positions import Learned2D, SinCos2D, resample_grid

RULES = ("linear_aligned", "bilinear", "bicubic", "bicubic_aligned", "bicubic_antialias")


@pytest.mark.parametrize("rule", RULES)
def test_resampling_to_the_same_grid_is_the_identity(rule: str) -> None:
    table = torch.randn(1, 6, 5)
    assert resample_grid(table, (2, 3), (2, 3), rule=rule) is table  # type: ignore[arg-type]


def test_the_papers_resampling_is_scipys_order_one_zoom() -> None:
    table = torch.randn(1, 14 * 14, 8, dtype=torch.float32)
    ours = resample_grid(table, (14, 14), (24, 20))
    theirs = zoom(table.reshape(14, 14, 8).numpy(), (24 / 14, 20 / 14, 1), order=1)
    np.testing.assert_allclose(ours.reshape(24, 20, 8).numpy(), theirs, atol=1e-5)  # float32 interpolation


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(2, 7), columns=st.integers(2, 7), down=st.integers(2, 9), across=st.integers(2, 9))
def test_a_plane_stays_a_plane_and_corners_stay_in_place(
    rows: int, columns: int, down: int, across: int
) -> None:
    r, c = torch.meshgrid(torch.linspace(0, 1, rows), torch.linspace(0, 1, columns), indexing="ij")
    plane = torch.stack([2 * r + 3 * c, c], dim=-1).reshape(1, -1, 2)
    moved = resample_grid(plane, (rows, columns), (down, across))
    r, c = torch.meshgrid(torch.linspace(0, 1, down), torch.linspace(0, 1, across), indexing="ij")
    torch.testing.assert_close(
        moved, torch.stack([2 * r + 3 * c, c], -1).reshape(1, -1, 2), rtol=1e-5, atol=1e-5
    )


def test_2d_tables_concatenate_column_and_row_halves_in_raster_order() -> None:
    table = Learned2D((2, 3), width=4, num_slots=1, resampling="linear_aligned")
    with torch.no_grad():
        table.slots.fill_(9)
        table.columns.copy_(torch.arange(3.0)[None, :, None].expand(1, 3, 2))
        table.rows.copy_(10 + torch.arange(2.0)[None, :, None].expand(1, 2, 2))
    first, *patches = table((2, 3))[0].tolist()
    assert first == [9, 9, 9, 9]
    assert patches == [[c, c, 10 + r, 10 + r] for r in range(2) for c in range(3)]


def test_sincos_equals_the_formula_at_any_grid() -> None:
    table = SinCos2D(width=16, num_slots=1)((3, 5))
    assert table.shape == (1, 16, 16)
    assert not table[0, 0].any()
    for row in range(3):
        for column in range(5):
            waves = [10_000 ** -(i / 3) for i in range(4)]
            expected = [f(x * w) for x in (column, row) for f in (math.sin, math.cos) for w in waves]
            np.testing.assert_allclose(table[0, 1 + 5 * row + column].numpy(), expected, atol=1e-6)


def test_offset_zero_stays_in_the_middle_when_relative_keys_are_resampled() -> None:
    keys = Relative1D(num_tokens=4, width=2)
    torch.nn.init.normal_(keys.table)
    more = keys(9)
    assert more.shape == (17, 2)
    torch.testing.assert_close(more[8], keys.table[3])
    torch.testing.assert_close(more[0], keys.table[0])
