"""The live line on a terminal, and the plain lines where there is none."""

import os
import pty
import re
import select
import sys
import time

import pytest

from vitrine.cli import live
from vitrine.cli.live import LiveLine
from vitrine.runtime.progress import announced, lengthen, listening


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


def test_the_time_left_is_never_negative_and_a_length_that_grows_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with LiveLine() as line, listening(line), announced("Studies", total=10) as advance:
        now[0] += live.PLAIN_EVERY_SECONDS + 1
        advance(11, "")
        lengthen(12)
        now[0] += live.PLAIN_EVERY_SECONDS + 1
        advance(0, "")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("Studies: 11/10") and first.endswith(", 0 s left")
    assert second.startswith("Studies: 11/22") and second.endswith(", 22 s left")


def test_a_length_that_grows_is_seen_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, terminal = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with open(terminal, "w") as stderr:  # noqa: PTH123 (a terminal has no path of its own)
        monkeypatch.setattr(sys, "stderr", stderr)
        with LiveLine() as line, listening(line), announced("Studies", total=2) as advance:
            lengthen(2)
            advance(3, "")
        stderr.flush()
        said = everything_in(ours)
    os.close(ours)
    assert "3/4" in said


def everything_in(terminal: int) -> str:
    """Read all that was written to a terminal, which hands it out in pieces."""
    said = b""
    while select.select([terminal], [], [], 0.2)[0]:
        said += os.read(terminal, 100_000)
    return said.decode()


def test_something_stands_on_a_terminal_until_the_first_word_and_is_then_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, terminal = pty.openpty()
    with open(terminal, "w") as stderr:  # noqa: PTH123 (a terminal has no path of its own)
        monkeypatch.setattr(sys, "stderr", stderr)
        with LiveLine("vitrine finetune ...") as line:
            assert everything_in(ours) == "vitrine finetune ..."
            line.notice("Plan: much")
            assert everything_in(ours) == "\r\x1b[2KPlan: much\r\n"
        assert everything_in(ours) == ""
    os.close(ours)


def test_nothing_stands_in_a_file_but_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveLine("vitrine finetune ...") as line:
        line.notice("Plan: " + "much " * 40)
    assert capsys.readouterr().err == "Plan: " + "much " * 40 + "\n"


def test_a_narrow_terminal_cuts_the_end_of_the_note_and_never_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, terminal = pty.openpty()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    note = "loss 2.3057, accuracy 12.5 %, lr 1.33e-03, 12,345 images/s, data 22%, 100.4 GiB"
    with open(terminal, "w") as stderr:  # noqa: PTH123 (a terminal has no path of its own)
        monkeypatch.setattr(sys, "stderr", stderr)
        with LiveLine() as line, listening(line), announced("Training", total=3000) as advance:
            for _ in range(3):
                time.sleep(0.02)
                advance(100, note)
        stderr.flush()
        said = everything_in(ours)
    os.close(ours)
    shown = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text) for text in re.split(r"[\r\n]+", said)]
    last = next(text for text in reversed(shown) if "300/3000" in text)
    shown_figures = (r"300/3000 0:00:0\d ", r"loss 2\.3057", r"accuracy 12\.5 %", r"lr 1\.33e-03", r", 12")
    assert all(re.search(figure, last) for figure in shown_figures)
    assert len(last) <= 80
