"""The style of figures."""

import warnings

import pytest

from vitrine.reports.figure_style import drawing, font_families, report_missing
from vitrine.runtime.progress import listening


def test_names_in_other_scripts_are_drawn_with_a_font_that_has_them():
    installed = ["DejaVu Sans", "Noto Emoji", "SimHei", "Noto Sans CJK JP", "Comic Sans"]
    assert font_families(installed) == ["DejaVu Sans", "Noto Sans CJK JP", "Noto Emoji"]
    assert font_families([]) == ["DejaVu Sans"]


def test_a_figure_with_chinese_and_emoji_names_prints_no_warning(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with drawing("names") as missing:
            figure = pyplot.figure()
            figure.suptitle("猫 🐈 кошка \U000f1234")
            figure.savefig(tmp_path / "names.png")
    assert (tmp_path / "names.png").stat().st_size > 0
    # A letter of the private use area is in no font; it is reported once, and other warnings stay warnings.
    assert "\U000f1234" in missing and "к" not in missing
    heard: list[str] = []

    class Ears:
        def notice(self, text, advice=()):
            heard.append(text)

    with listening(Ears()):
        report_missing(missing)
        report_missing(set())
    assert len(heard) == 1 and "no installed font" in heard[0]
    with pytest.warns(UserWarning, match="another"), drawing("names"):
        warnings.warn("another", stacklevel=1)
