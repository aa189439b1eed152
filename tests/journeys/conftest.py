"""What several journeys begin with."""

import sys

import pytest

from vitrine.cli import app


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in an empty folder with a cache of its own."""
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def command_line(monkeypatch, capsys):
    """Run one verb in this process; returns exit code, standard output, standard error."""

    def of(verb):
        monkeypatch.setattr(app, "VERBS", [each for each in app.VERBS if each.name == verb])

        def run(*words):
            monkeypatch.setattr(sys, "argv", ["vitrine", *map(str, words)])
            try:
                app.main()
                code = 0
            except SystemExit as end:
                code = end.code or 0
            said = capsys.readouterr()
            return code, said.out, said.err

        return run

    return of
