"""Words around numbers, and the width of text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from vitrine.spelling import counted, duration, num_cells, with_name


def test_one_thing_is_no_several_things() -> None:
    assert [counted(number, "image") for number in (0, 1, 2, 1000)] == [
        "0 images",
        "1 image",
        "2 images",
        "1,000 images",
    ]


@given(st.text(alphabet="abc é/.-_阿比西尼亚猫한글カナＡ"))
def test_text_is_as_wide_as_the_terminals_library_says(text: str) -> None:
    assert num_cells(text) == cell_len(text)


def test_an_accent_by_itself_takes_no_room() -> None:
    assert num_cells("e\u0301") == 1


def test_a_file_is_named_once() -> None:
    assert with_name("a/b.jpg is empty (0 bytes)", "a/b.jpg") == "a/b.jpg is empty (0 bytes)"
    assert with_name("is empty (0 bytes)", "a/b.jpg") == "a/b.jpg: is empty (0 bytes)"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"), (41.3, "42 s"), (100, "1.7 min"), (360, "6 min"), (445, "7.4 min"), (5000, "83 min"),
        (9000, "2.5 h"), (200_000, "2.3 days"), (1.8e9, "57 years"),
    ],
)  # fmt: skip
def test_a_time_is_said_in_the_unit_that_fits_it(seconds: float, words: str) -> None:
    assert duration(seconds) == words
