"""Time a short fine-tuning by phase: what comes before the first step, the steps, and what comes after the last.

    PYTHONPATH=src python benchmarks/short_run.py --device cuda                1,000 generated JPEGs, 560 steps
    PYTHONPATH=src python benchmarks/short_run.py DATA --steps 8 --profile     and the functions that took longest

Runs `vitrine.finetune` with the bundled model and an empty cache; the clock starts before torch is imported.
Evaluations between steps count as steps.
"""

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

TRAINING = "Training"


class Clock:
    """A listener that notes when each announced work began and ended."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, float, float]] = []
        self._open: list[tuple[str, float]] = []
        self.first_step: float | None = None
        self.last_step = 0.0

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        self._open.append((what, time.perf_counter()))
        if what == TRAINING and self.first_step is None:
            self.first_step = time.perf_counter()

    def advance(self, steps: int, note: str = "") -> None:
        if self._open and self._open[-1][0] == TRAINING:
            self.last_step = time.perf_counter()

    def lengthen(self, steps: int) -> None:
        """Nor does a change of length."""

    def finish(self) -> None:
        what, began = self._open.pop()
        self.phases.append((what, began, time.perf_counter()))

    def notice(self, text: str, advice: Sequence[object] = ()) -> None:
        """Notices take no time."""

    def present(self, record: object) -> None:
        """Nor do plans."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="folders of pictures [default: generated]")
    parser.add_argument("--model", help="[default: the bundled one]")
    parser.add_argument("--count", type=int, default=1000, help="generated pictures")
    parser.add_argument("--steps", type=int, default=560)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--set", action="append", default=[], help="a setting, as of `vitrine finetune`")
    parser.add_argument("--profile", action="store_true", help="list functions by their CPU time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VITRINE_CACHE"] = f"{folder}/cache"
        data = options.data or generated(Path(folder) / "pictures", count=options.count)
        began = time.perf_counter()
        profile = cProfile.Profile(time.process_time)
        with profile if options.profile else nullcontext():
            clock = timed(data, Path(folder) / "run", options)
        figures = figures_of(clock, began=began, ended=time.perf_counter())
    if options.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats("vitrine", 60)
    print(json.dumps(figures, indent=2))
    if options.out:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")


def generated(folder: Path, *, count: int) -> Path:
    """Write JPEGs of ten classes, in another process: this one must not have imported torch before it is timed."""
    code = f"from pathlib import Path; from data import make_jpegs; make_jpegs(Path({str(folder)!r}), count={count})"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True)
    return folder


def timed(data: Path, out: Path, options: argparse.Namespace) -> Clock:
    """Fine-tune as the command does, imports included."""
    import vitrine
    from vitrine.runtime.progress import listening

    clock = Clock()
    more: dict[str, Any] = {} if options.workers is None else {"workers": options.workers}
    with listening(clock):
        vitrine.finetune(
            data, model=options.model, out=out, steps=options.steps, batch_size=options.batch_size,
            device=options.device, hold_out=0.1, set=options.set, **more,
        )  # fmt: skip
    return clock


def figures_of(clock: Clock, *, began: float, ended: float) -> dict[str, Any]:
    """Return seconds before, in and after the steps, and of each announced phase, in order."""
    assert clock.first_step is not None
    return {
        "before the first step": round(clock.first_step - began, 2),
        "steps": round(clock.last_step - clock.first_step, 2),
        "after the last step": round(ended - clock.last_step, 2),
        "whole": round(ended - began, 2),
        "phases": [
            {"what": what, "at": round(start - began, 2), "seconds": round(end - start, 2)}
            for what, start, end in clock.phases
        ],
    }


if __name__ == "__main__":
    main()
