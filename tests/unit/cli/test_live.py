"""The live line, where there is no terminal: plain lines now and then."""

import time

import pytest

from vitrine.cli import live
from vitrine.cli.live import LiveLine
from vitrine.runtime.progress import announced, listening


def test_the_time_left_is_reckoned_from_what_was_done_now_and_not_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with LiveLine() as line, listening(line), announced("Training", total=100, done=80) as advance:
        now[0] += live.PLAIN_EVERY_SECONDS + 1
        advance(4, "")
    said = capsys.readouterr().err
    assert "Training: 84/100" in said
    assert ", 44 s left" in said  # 16 steps at 4 in 11 seconds
