"""Words around numbers, and the width of text."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from vitrine.spelling import counted, num_cells, with_name


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
