"""Commands that are suggested can be typed as they stand."""

import sys
from pathlib import Path

import pytest

from vitrine.cli.typed import as_typed

SAID = """Wrote runs/1/model
Next: vitrine inspect runs/1 ./photos   (what it looks at)
  or: vitrine predict runs/1 PICTURES
  vitrine --help        everything else
stopped; go on with: vitrine resume runs/1
The folder vitrine finetune made, and vitrine itself, stay as they are"""


def said_by(called: str, monkeypatch: pytest.MonkeyPatch, *, path: str) -> str:
    monkeypatch.setattr(sys, "argv", [called, "finetune"])
    monkeypatch.setenv("PATH", path)
    return as_typed(SAID)


def test_a_command_that_is_not_on_the_path_is_suggested_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = said_by(".venv/bin/vitrine", monkeypatch, path="/nowhere").splitlines()
    assert said[1] == "Next: .venv/bin/vitrine inspect runs/1 ./photos   (what it looks at)"
    assert said[2] == "  or: .venv/bin/vitrine predict runs/1 PICTURES"
    assert said[3] == "  .venv/bin/vitrine --help        everything else"
    assert said[4] == "stopped; go on with: .venv/bin/vitrine resume runs/1"
    assert said[5] == SAID.splitlines()[5]


def test_a_command_on_the_path_and_a_module_are_suggested_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vitrine").write_text("#!/bin/sh\n")
    (tmp_path / "vitrine").chmod(0o755)
    assert said_by(f"{tmp_path}/vitrine", monkeypatch, path=str(tmp_path)) == SAID
    assert said_by("src/vitrine/cli/__main__.py", monkeypatch, path="/nowhere") == SAID
    assert said_by("vitrine", monkeypatch, path="/nowhere") == SAID
