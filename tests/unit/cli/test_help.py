"""The list of all verbs."""

import pytest
from typer.testing import CliRunner

from vitrine.cli.app import build
from vitrine.commands import VERBS


@pytest.mark.parametrize("columns", ["80", "120"])
def test_every_verb_is_listed_with_a_whole_sentence(columns: str) -> None:
    shown = CliRunner(env={"COLUMNS": columns}).invoke(build(), ["--help"]).stdout
    listed = shown[shown.index("Commands:") :]
    assert "..." not in listed
    for verb in VERBS:
        assert f"\n  {verb.name} " in listed
    assert "Begin with: vitrine check ./photos" in shown
