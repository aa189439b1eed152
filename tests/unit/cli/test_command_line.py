"""Commands that are suggested can be typed as they stand."""

import sys
from pathlib import Path

import pytest

from vitrine.cli.command_line import COMMAND_LINE, GLUE, command, option, program
from vitrine.errors import ConfigError, TryOption, TryVerb


def called_as(called: str, monkeypatch: pytest.MonkeyPatch, *, path: str) -> str:
    monkeypatch.setattr(sys, "argv", [called, "finetune"])
    monkeypatch.setenv("PATH", path)
    return program()


def test_a_program_that_is_not_on_the_path_is_suggested_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert called_as(".venv/bin/vitrine", monkeypatch, path="/nowhere") == ".venv/bin/vitrine"
    assert command("check", "photos") == f".venv/bin/vitrine{GLUE}check{GLUE}photos"


def test_a_program_on_the_path_and_a_module_are_suggested_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vitrine").write_text("#!/bin/sh\n")
    (tmp_path / "vitrine").chmod(0o755)
    assert called_as(f"{tmp_path}/vitrine", monkeypatch, path=str(tmp_path)) == "vitrine"
    assert called_as("src/vitrine/cli/__main__.py", monkeypatch, path="/nowhere") == "vitrine"
    assert called_as("vitrine", monkeypatch, path="/nowhere") == "vitrine"


def test_options_are_spelled_as_they_are_typed() -> None:
    assert option("batch_size") == "--batch-size"
    assert option("class_", 3) == f"--class{GLUE}3"
    assert option("overwrite", True) == "--overwrite"
    assert option("out", "my runs") == f"--out{GLUE}'my{GLUE}runs'"


def test_one_error_is_spelled_for_the_shell_and_for_python() -> None:
    error = ConfigError(
        "holds a run",
        option="out",
        advice=[TryOption("overwrite", "to replace it", True), TryVerb("resume", ("my run",), "to continue")],
    )
    *parts, last = error.text(COMMAND_LINE).replace(GLUE, " ").split("; ")
    assert parts == ["--out: holds a run", "use --overwrite to replace it"]
    assert last.split(" to ") == ["run vitrine resume 'my run'", "continue"]
    assert str(error).split("; ") == [
        "out: holds a run",
        "use overwrite=True to replace it",
        "run vitrine.resume('my run') to continue",
    ]
