"""Words around numbers, and names that a terminal can take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrine.spelling import UNSAFE, counted, cut_to, duration, printable, width_of, with_name


def test_one_thing_is_no_several_things() -> None:
    assert [counted(number, "image") for number in (0, 1, 2, 1000)] == [
        "0 images",
        "1 image",
        "2 images",
        "1,000 images",
    ]


@given(st.text())
def test_a_printable_name_holds_no_control_characters_and_stays_as_it_is_when_printed_again(
    name: str,
) -> None:
    text = printable(name)
    assert not UNSAFE.search(text)
    assert printable(text) == text


@pytest.mark.parametrize("name", ["photo.jpg", "阿比西尼亚猫", "café", "a\\b", "👩‍🚀"])
def test_an_ordinary_name_stays_as_it_is(name: str) -> None:
    assert printable(name) == name


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


def test_wide_letters_take_two_columns_and_marks_none() -> None:
    assert [width_of(text) for text in ("cat", "猫", "🐈 cat", "e\u0301")] == [3, 2, 6, 1]
    assert cut_to("阿比西尼亚猫", 7) == "阿比西" and cut_to("cat", 7) == "cat"
