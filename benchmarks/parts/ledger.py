"""The ledger of CIFAR-10 speed records: what a kept measurement says, and the table of docs/records.md.

A kept measurement is a JSON file in docs/records/: the track (the mark in percent), recipe, command, commit, date,
device, what changed, and every seed with its test accuracy, seconds of the whole command and training curve.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrine.spelling import counted

TRACKS = (94, 95, 96, 97)
# A record needs the mean of at least this many seeds.
LEAST_SEEDS = 5
MOST_POINTS = 40
HEADER = (
    "track", "test accuracy, one view", "six views", "whole command", "recipe", "what changed", "date, commit",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures of one measurement."""

    track: int
    num_seeds: int
    mean: float
    """Test accuracy of one view, in percent."""
    deviation: float | None
    """Sample standard deviation over seeds; None for one seed."""
    mean_of_views: float | None
    seconds: tuple[float, ...]
    """Of the whole command, of runs that had the device to themselves and a warm compile cache."""

    @property
    def is_record(self) -> bool:
        """Whether enough seeds reach the mark on average and at least one was timed alone."""
        return self.num_seeds >= LEAST_SEEDS and self.mean >= self.track and bool(self.seconds)

    @property
    def shortfall(self) -> str:
        """Name what a measurement lacks to be a record."""
        if self.num_seeds < LEAST_SEEDS:
            return f"{self.num_seeds} of {LEAST_SEEDS} seeds"
        return "below the mark" if self.mean < self.track else "not timed alone"


def summarise(measurement: dict[str, Any]) -> Summary:
    """Compute the figures of a kept measurement from its seeds."""
    runs = measurement["runs"]
    accuracies = [100 * run["top1"] for run in runs]
    views = [100 * run["top1_views"] for run in runs if run.get("top1_views") is not None]
    return Summary(
        track=measurement["track"],
        num_seeds=len({run["seed"] for run in runs}),
        mean=statistics.mean(accuracies),
        deviation=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        mean_of_views=statistics.mean(views) if len(views) == len(runs) else None,
        seconds=tuple(run["seconds"] for run in runs if run["was_alone"] and run["was_warm"]),
    )


def read_measurements(folder: Path) -> list[dict[str, Any]]:
    """Read all kept measurements, by track and date."""
    kept = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return sorted(kept, key=lambda one: (one["track"], one["date"]))


def table(measurements: Sequence[dict[str, Any]]) -> str:
    """Return the table of all tracks in Markdown; a track without a measurement is empty."""
    rows = []
    for track in TRACKS:
        own = [one for one in measurements if one["track"] == track]
        rows += [row(one) for one in own] or [(f"{track} %", "empty", *[""] * (len(HEADER) - 2))]
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def row(measurement: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of one measurement."""
    summary = summarise(measurement)
    mark = f"**{summary.track} %**" if summary.is_record else f"{summary.track} %: {summary.shortfall}"
    spread = "" if summary.deviation is None else f" ± {summary.deviation:.2f}"
    views = "" if summary.mean_of_views is None else f"{summary.mean_of_views:.2f} %"
    return (
        mark,
        f"{summary.mean:.2f}{spread} % ({counted(summary.num_seeds, 'seed')})",
        views,
        shown_seconds(summary.seconds),
        f"`{measurement['recipe']}`",
        measurement["change"],
        f"{measurement['date']}, {measurement['commit']}",
    )


def shown_seconds(seconds: Sequence[float]) -> str:
    """Write the durations of the runs that were timed: one, or the mean and the range."""
    if not seconds:
        return "not timed alone"
    if len(seconds) == 1:
        return f"{seconds[0]:.0f} s"
    return f"{statistics.mean(seconds):.0f} s ({min(seconds):.0f} to {max(seconds):.0f})"


def thinned_curve(run: Path) -> list[list[float]]:
    """Return [step, loss, accuracy on training images] of a run, at most 40 points, the last included."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    points = [
        [one["step"], round(one["loss"], 4), round(one["accuracy"], 4)] for one in records if "loss" in one
    ]
    every = -(-len(points) // MOST_POINTS)
    return points[::-1][::every][::-1]
