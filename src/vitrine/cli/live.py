"""One live line on a terminal (task, progress, rate, time left); elsewhere a plain line every ten seconds."""

import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from vitrine.cli.command_line import COMMAND_LINE
from vitrine.cli.lines import Line, rendered, width_of
from vitrine.cli.views import record_lines
from vitrine.errors import Advice
from vitrine.spelling import printable

PLAIN_EVERY_SECONDS = 10.0
# Columns that fit the longest note, columns of the bar then, and columns of the bar on a narrower terminal.
WIDE, BAR_WIDTH, SMALL_BAR_WIDTH = 110, 10, 4
ERASE = "\r\x1b[2K"  # erases the terminal's line


class LiveLine:
    """Listen to progress and show it on standard error, so that standard output stays for results."""

    def __init__(self, waiting: str = "") -> None:
        self._waiting = waiting
        self._on_terminal = sys.stderr.isatty()
        self._bar: Progress | None = None
        self._what, self._total, self._done = "", None, 0  # type: tuple[str, int | None, int]
        self._note, self._done_before = "", 0
        self._began = self._last_plain = 0.0

    def __enter__(self) -> Self:
        # Importing torch takes a second or two: a terminal shows this line until the first message.
        if self._waiting and self._on_terminal:
            print(self._waiting, end="", file=sys.stderr, flush=True)
        else:
            self._waiting = ""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        """Begin a new line; work that was done before does not count for the speed."""
        self.finish()
        self._what, self._total, self._done, self._note = printable(what), total, done, ""
        self._done_before = done
        self._began = self._last_plain = time.monotonic()
        if self._on_terminal:
            # On a narrow terminal the end of the note is cut off, never the time left.
            note = Column(no_wrap=True, overflow="ellipsis", ratio=1)
            console = Console(stderr=True)
            bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=BAR_WIDTH if console.width >= WIDE else SMALL_BAR_WIDTH),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[rate]}", table_column=note),
                expand=True,
                console=console,
                transient=True,
            )
            bar.add_task(self._what, total=total, completed=done, rate="")
            bar.start()
            self._bar = bar

    def advance(self, steps: int, note: str = "") -> None:
        """Update the progress: on a terminal at once, elsewhere a line every ten seconds."""
        self._done += steps
        self._note = note or self._note
        now = time.monotonic()
        rate = (self._done - self._done_before) / max(now - self._began, 1e-9)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=steps, rate=self._note or f"{rate:,.1f}/s")
        elif not self._on_terminal and now - self._last_plain > PLAIN_EVERY_SECONDS:
            self._last_plain = now
            left = f", {max(0, self._total - self._done) / rate:,.0f} s left" if self._total else ""
            of = f"/{self._total:,}" if self._total else ""
            note = self._note or f"{rate:,.1f}/s"
            print(f"{self._what}: {self._done:,}{of}, {note}{left}", file=sys.stderr, flush=True)

    def lengthen(self, steps: int) -> None:
        """Count the added steps among those left."""
        if self._total is not None:
            self._total += steps
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], total=self._total)

    def finish(self) -> None:
        """Remove the line."""
        self._stop_waiting()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def notice(self, text: str, advice: Sequence[Advice] = ()) -> None:
        """Print a sentence above the line."""
        self._print_above(["; ".join([text, *(one.text(COMMAND_LINE) for one in advice)])])

    def present(self, record: object) -> None:
        """Print a record above the line, as its view renders it."""
        self._print_above(record_lines(record))

    def _print_above(self, lines: Iterable[Line]) -> None:
        self._stop_waiting()
        text = "\n".join(rendered(lines, width=width_of(sys.stderr)))
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _stop_waiting(self) -> None:
        if self._waiting:
            print(ERASE, end="", file=sys.stderr, flush=True)
            self._waiting = ""
