"""What Python callers write, in one form."""

from pathlib import Path

import pytest

from vitrine.commands.arguments import as_model, as_numbers, as_path, as_paths, as_texts


def test_a_single_value_needs_no_list_and_text_is_as_good_as_a_path() -> None:
    assert as_path("a/b.csv") == as_path(Path("a/b.csv")) == Path("a/b.csv")
    assert as_path(None) is None
    assert as_paths("a.jpg") == (Path("a.jpg"),)
    assert as_texts(Path("a.jpg")) == ("a.jpg",)
    assert as_texts(name for name in ("a", Path("b"))) == ("a", "b")
    assert as_texts(None) == ()


@pytest.mark.parametrize(
    ("numbers", "text"), [("1,5", "1,5"), (5, "5"), ([1, 5], "1,5"), ((0.5, 2), "0.5,2"), (None, None)]
)
def test_numbers_may_be_a_list_or_text_with_commas(numbers: object, text: str | None) -> None:
    assert as_numbers(numbers) == text  # type: ignore[call-overload]


def test_a_path_names_a_folder_and_never_the_bundled_model_or_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    assert as_model("box") == "box"
    assert as_model(Path("box")) == "./box"
    assert as_model(Path("google/vit")) == "./google/vit"
    assert as_model(Path("run")) == "run"
    assert as_model(tmp_path / "gone") == str(tmp_path / "gone")
