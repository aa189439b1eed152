"""The style of figures."""

import warnings

import pytest

from vitrine.reports.figure_style import drawing, font_families


def test_names_in_other_scripts_are_drawn_with_a_font_that_has_them():
    installed = ["DejaVu Sans", "Noto Emoji", "SimHei", "Noto Sans CJK JP", "Comic Sans"]
    assert font_families(installed) == ["DejaVu Sans", "Noto Sans CJK JP", "Noto Emoji"]
    assert font_families([]) == ["DejaVu Sans"]


def test_a_figure_with_chinese_and_emoji_names_prints_no_warning(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with drawing("names"):
            figure = pyplot.figure()
            figure.suptitle("猫 🐈 кошка")
            figure.savefig(tmp_path / "names.png")
    assert (tmp_path / "names.png").stat().st_size > 0
