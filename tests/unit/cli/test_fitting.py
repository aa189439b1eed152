"""Lines on a narrow terminal are broken between words; what is to be copied stays whole."""

import io

import pytest
from rich.cells import cell_len

from vitrine.cli.fitting import broken, fitted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_sentence_is_broken_between_words_and_nothing_of_it_is_lost(width: int) -> None:
    said = "  138 train, 12 val images; 172 steps of 16 (19.9 epochs), judged every 18; adamw at 0.0003, warm-up 34"
    lines = broken(said, width=width)
    assert max(map(len, lines)) <= width
    assert " ".join(line.strip() for line in lines) == said.strip()
    assert all(line.startswith("    ") for line in lines[1:])


def test_lines_that_fit_stay_as_they_are_with_their_spaces() -> None:
    table = "  class     all\n  pug          7\n\n  阿比西尼亚   3"
    assert broken(table, width=20) == table.split("\n")


def test_wide_characters_take_two_cells() -> None:
    lines = broken("阿比 西尼 亚猫 阿比 西尼 亚猫", width=16)
    assert max(map(cell_len, lines)) <= 16 and len(lines) > 1


def test_commands_settings_and_paths_are_never_broken() -> None:
    command = "vitrine resume runs/2026-11-16-072634-finetune --device cpu"
    said = f"vitrine: stopped after step 24 of 172; everything is saved; go on with: {command}"
    assert broken(said, width=50)[-1].strip() == command
    setting = "--set training.patience=null"
    assert any(setting in line for line in broken("to go on with this run give " + setting, width=40))
    path = "runs/" + "long" * 20
    assert broken(f"to {path} now", width=30)[1].strip() == path


def test_the_remark_behind_a_command_or_a_path_moves_down_whole() -> None:
    assert broken("Next: vitrine inspect runs/1 ./photos   (what it looks at)", width=40) == [
        "Next: vitrine inspect runs/1 ./photos",
        "  (what it looks at)",
    ]
    wrote = "Wrote runs/a folder of mine/model"
    assert broken(f"{wrote} (weights, classes)", width=20) == [wrote, "  (weights, classes)"]


def test_elsewhere_than_on_a_terminal_every_line_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    said = "words " * 20
    assert fitted(said, io.StringIO()) == said
    assert "\n" in fitted(said, Terminal())
