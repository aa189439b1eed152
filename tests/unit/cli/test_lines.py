"""Lines on a narrow terminal are broken between words; what is to be copied stays whole."""

import io
import shlex
from pathlib import Path

import pytest
from rich.cells import cell_len

from vitrine.cli.command_line import command, option
from vitrine.cli.lines import Line, Next, NextStep, Table, Wrote, rendered, show, wrapped


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def text(*lines: Line, width: int = 80) -> list[str]:
    return list(rendered(lines, width=width))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_sentence_is_broken_between_words_and_nothing_of_it_is_lost(width: int) -> None:
    sentence = (
        "  138 train, 12 val images; 172 steps of 16 (19.9 epochs), evaluated every 18; adamw at 0.0003"
    )
    lines = list(wrapped(sentence, width=width))
    assert max(map(len, lines)) <= width
    assert " ".join(line.strip() for line in lines) == sentence.strip()
    assert all(line.startswith("    ") for line in lines[1:])


def test_a_line_that_fits_keeps_its_spaces() -> None:
    assert text("  class     all", width=20) == ["  class     all"]


def test_a_line_break_in_a_name_is_escaped_and_forges_no_line() -> None:
    assert text("photos/a\nWrote /etc/passwd", width=80) == ["photos/a\\nWrote /etc/passwd"]


def test_wide_characters_take_two_cells() -> None:
    lines = list(wrapped("阿比 西尼 亚猫 阿比 西尼 亚猫", width=16))
    assert max(map(cell_len, lines)) <= 16 and len(lines) > 1


def test_commands_options_and_paths_are_never_broken() -> None:
    resume = command("resume", "runs/2026 11 16-finetune", device="cpu")
    lines = text(f"stopped after step 24 of 172; everything is saved; run {resume} to continue", width=50)
    unbroken = shlex.join(["vitrine", "resume", "runs/2026 11 16-finetune", "--device", "cpu"])
    assert any(unbroken in line for line in lines)
    lines = text("to continue with this run use " + option("set", "training.patience=null"), width=40)
    assert any("--set training.patience=null" in line for line in lines)
    path = "runs/" + "long" * 20
    assert text(f"to {path} now", width=30)[1].strip() == path


def test_the_note_behind_a_command_or_a_path_moves_down_where_it_does_not_fit() -> None:
    assert text(Next("inspect", ("runs/1", "./photos"), note="what it looks at"), width=40) == [
        "Next: vitrine inspect runs/1 ./photos",
        "  (what it looks at)",
    ]
    assert text(Wrote(Path("runs/a folder of mine/model"), "weights, classes"), width=20) == [
        "Wrote runs/a folder of mine/model",
        "  (weights, classes)",
    ]
    assert text(Wrote("model", "weights")) == ["Wrote model   (weights)"]


def test_several_next_steps_in_a_row_are_alternatives() -> None:
    first, second = text(Next("predict", ("runs/my cats", "PICTURES"), {"top": 3}), NextStep("open the page"))
    assert shlex.split(first) == ["Next:", "vitrine", "predict", "runs/my cats", "PICTURES", "--top", "3"]
    assert second.split() == ["or:", "open", "the", "page"]


def test_columns_of_a_table_are_aligned_by_cells_and_no_line_ends_in_spaces() -> None:
    table = Table(
        [("阿比", "3", ""), ("pug", "1,200", "x")], header=("class", "all", ""), right=(1,), indent=2
    )
    assert text(table) == ["  class    all", "  阿比       3", "  pug    1,200  x"]


def test_elsewhere_than_on_a_terminal_every_line_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    sentence, file, terminal = "words " * 20, io.StringIO(), Terminal()
    show([sentence, Table([("a" * 90, "b" * 90)])], file)
    assert file.getvalue() == f"{sentence}\n{'a' * 90}  {'b' * 90}\n"
    show([sentence], terminal)
    assert max(map(len, terminal.getvalue().splitlines())) <= 20


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\x9b2Jb", "a\rb", "a\u202eb", "a\x07b"])
def test_escape_sequences_in_names_never_reach_the_terminal(name: str) -> None:
    lines: list[Line] = [name, Wrote(name), Next("predict", (name,)), NextStep(name), Table([(name,)])]
    shown = "\n".join(text(*lines))
    assert shown.count("\\") >= len(lines)
    assert all(letter == "\n" or letter.isprintable() for letter in shown)
