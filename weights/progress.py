"""The log of a run, its clock, and sums of losses between two lines."""

import json
import math
import time
from pathlib import Path

import torch
from torch import Tensor


class Log:
    """One JSON line per event, printed and stored."""

    def __init__(self, path: Path) -> None:
        self.path, self.start = path, time.monotonic()

    def __call__(self, **values: object) -> None:
        """Write one line."""
        line = json.dumps({"seconds": round(time.monotonic() - self.start, 1), **values})
        print(line, flush=True)
        with self.path.open("a") as file:
            file.write(line + "\n")


class Clock:
    """Elapsed fraction of the training time; compilation at the start of a stage does not count."""

    def __init__(self, minutes: float) -> None:
        self.total, self.start, self.pause = 60 * minutes, 0.0, 0.0

    def stop(self) -> None:
        """Pause until `go`."""
        self.pause = time.monotonic()

    def go(self) -> None:
        """Continue."""
        now = time.monotonic()
        self.start, self.pause = now - (self.pause - self.start if self.start else 0.0), 0.0

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        now = self.pause or time.monotonic()
        return now - self.start if self.start else 0.0

    @property
    def share(self) -> float:
        """Elapsed fraction of the time, 0 to 1."""
        return self.seconds / self.total


class Tally:
    """Sums of the losses between two lines of the log."""

    def __init__(self, log: Log) -> None:
        self.log, self.step, self.seen, self.count = log, 0, 0, 0
        self.last = 0.0
        self.sums: dict[str, Tensor] = {}

    def losses(self, losses: dict[str, Tensor]) -> None:
        """Add the losses of a student."""
        for name, value in losses.items():
            self.sums[name] = self.sums.get(name, torch.zeros_like(value)) + value.detach()

    def count_step(self, batch: int) -> None:
        """Count one step."""
        self.step, self.seen, self.count = self.step + 1, self.seen + batch, self.count + 1

    def check(self) -> None:
        """Stop on NaN or infinity."""
        if not all(math.isfinite(value.item()) for value in self.sums.values()):
            raise SystemExit(f"the loss at step {self.step} is not finite; try a smaller --lr")

    def tell(self, seconds: float, **more: object) -> bool:
        """Write a line every ten seconds; return whether a minute is over."""
        if seconds - self.last < 10:
            return False
        self.check()
        means = {name: round(value.item() / self.count, 4) for name, value in self.sums.items()}
        self.log(event="train", step=self.step, seen=self.seen, spent=round(seconds, 1), **more, **means)
        is_minute = seconds // 60 > self.last // 60
        self.last, self.count, self.sums = seconds, 0, {}
        return is_minute
