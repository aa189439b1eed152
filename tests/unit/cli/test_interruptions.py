"""Ctrl-C is one sentence and code 130, whenever it comes."""

import contextlib
import signal
from collections.abc import Iterator

import pytest

from vitrine.cli import app


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def swallow(**options: object) -> None:
    """Do as an import in C that ignores the error of another import."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    raise AttributeError("module 'numpy' has no attribute 'subtract'")


def test_one_that_an_import_swallows_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    noted = app.noted_interruptions()
    assert app.exit_code_of(swallow, interruptions=noted) == 130
    assert capsys.readouterr().err == "vitrine: interrupted\n"


def test_one_while_the_commands_are_put_together_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "build", lambda: signal.raise_signal(signal.SIGINT))
    monkeypatch.setenv("GOMP_SPINCOUNT", app.SPIN_ROUNDS)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "vitrine: interrupted\n"


def test_one_that_the_shell_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    app.noted_interruptions()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
