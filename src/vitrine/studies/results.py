"""Results of finished runs: one line each in `results.jsonl`, and the statistics that rules use."""

import json
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrine.errors import DataError
from vitrine.reports.charts import Point
from vitrine.runtime.files import parse_json
from vitrine.runtime.locks import wait_for_lock

FILE = "results.jsonl"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One finished run: the fields of its line."""

    study: str
    run: str
    key: str
    series: str
    """Equal for comparable runs: one scale, one data set."""
    command: str
    group: str
    seed: int
    role: str
    settings: dict[str, Any]
    scale: str
    data: str
    measures: dict[str, float]
    params: int
    macs: int
    exaflops: float
    steps: int
    seconds: float
    num_images: int
    num_test: int
    device: str
    version: str
    jobs: int = 1
    """Runs that shared the device at a time."""
    resumed_at: int = 0
    """The step from which the run was resumed."""
    launched: str = ""
    """Why steps were launched kernel by kernel although they should have been recorded; empty if they were."""


class Results:
    """The measured runs of one study, selected by their settings."""

    def __init__(self, results: Iterable[Result], *, measure: str = "accuracy") -> None:
        self.all = tuple(results)
        self.measured = tuple(result for result in self.all if result.role == "measured")
        self.measure = measure

    def __len__(self) -> int:
        return len(self.measured)

    def where(self, **settings: Any) -> list[Result]:
        """Return the measured runs that have these settings, by seed."""
        matching = [
            result
            for result in self.measured
            if all(result.settings.get(name) == value for name, value in settings.items())
        ]
        return sorted(matching, key=lambda result: result.seed)

    def values(self, measure: str = "", **settings: Any) -> list[float]:
        """Return one number per seed."""
        name = measure or self.measure
        return [result.measures[name] for result in self.where(**settings) if name in result.measures]

    def options(self, setting: str) -> list[Any]:
        """Return the values that a setting takes, in order of appearance."""
        return list(
            dict.fromkeys(result.settings[setting] for result in self.measured if setting in result.settings)
        )

    def fewest_seeds(self) -> int:
        """Return the number of seeds of the group that has the fewest."""
        return min(map(len, self.groups().values()), default=0)

    def groups(self) -> dict[str, list[Result]]:
        """Return the measured runs by group, each with its seeds."""
        groups: dict[str, list[Result]] = {}
        for result in self.measured:
            groups.setdefault(result.group, []).append(result)
        return groups

    def spread(self, measure: str = "") -> float:
        """Return the standard deviation of one run, pooled over all groups with more than one seed.

        With one seed each, it is the binomial standard deviation for the size of the test set.
        """
        name = measure or self.measure
        pooled = pooled_deviation(
            [member.measures[name] for member in members if name in member.measures]
            for members in self.groups().values()
        )
        if pooled is not None:
            return pooled
        values = self.values(name)
        if not values:
            return 0.0
        mean = statistics.fmean(values)
        num_test = max((result.num_test for result in self.measured), default=0)
        return float((max(mean * (1 - mean), 0.0) / num_test) ** 0.5) if num_test else 0.0


def pooled_deviation(groups: Iterable[Sequence[float]]) -> float | None:
    """Return the standard deviation of one value within its group, pooled over groups; None if all have one value."""
    squares, freedom = 0.0, 0
    for values in groups:
        if len(values) > 1:
            squares += statistics.variance(values) * (len(values) - 1)
            freedom += len(values) - 1
    return (squares / freedom) ** 0.5 if freedom else None


def best_option(results: Results, setting: str, **fixed: Any) -> Any:
    """Return the value of a setting with the best mean on held-out images; None if none was measured.

    A choice on the test set would overestimate the accuracy.
    """
    means = {
        option: statistics.fmean(values)
        for option in results.options(setting)
        if (values := results.values("held_out", **{setting: option}, **fixed))
    }
    return max(means, key=means.__getitem__) if means else None


def is_at_edge(results: Results, setting: str, option: Any, **fixed: Any) -> bool:
    """Whether a value is the smallest or largest one tried, or the only one: a better one may exist beyond it."""
    if option is None:
        return True
    tried = [value for value in results.options(setting) if results.where(**{setting: value}, **fixed)]
    return option in (min(tried), max(tried))


def mean_and_spread(values: list[float]) -> tuple[float, float | None]:
    """Return mean and standard deviation (n - 1); the latter is None for one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def point_at(results: Results, x: float | str, *, measure: str = "", **settings: Any) -> tuple[Point, ...]:
    """Return the mean over seeds, in percent, as a point at `x`; nothing if it was not measured."""
    values = results.values(measure, **settings)
    if not values:
        return ()
    return (point_of(x, values),)


def point_of(x: float | str, values: Sequence[float]) -> Point:
    """Return the mean of fractions, in percent, as a point at `x`."""
    mean, spread = mean_and_spread([100 * value for value in values])
    return Point(x=x, y=mean, spread=spread, seeds=len(values))


def points_by(
    results: Results, setting: str, options: Sequence[Any], *, measure: str = "", **fixed: Any
) -> tuple[Point, ...]:
    """Return one point per option of a setting."""
    points: list[Point] = []
    for option in options:
        points += point_at(results, str(option), measure=measure, **{setting: option}, **fixed)
    return tuple(points)


def paper_points(values: Mapping[str, float]) -> tuple[Point, ...]:
    """Return the paper's own numbers as points."""
    return tuple(Point(x=name, y=value) for name, value in values.items())


def append_result(folder: Path, values: Mapping[str, Any]) -> None:
    """Append one line; first remove an incomplete line left by a crash."""
    line = json.dumps(values).encode() + b"\n"
    # Otherwise a line that another process is writing would be mistaken for one cut off by a crash.
    with wait_for_lock(folder / FILE), (folder / FILE).open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line)  # opened for appending: it goes to the end
        file.flush()
        os.fsync(file.fileno())


def read_results(folder: Path) -> list[Result]:
    """Read every finished run of a study; of two lines with the same key, the later counts."""
    by_key: dict[str, Result] = {}
    for number, values in enumerate(whole_lines(folder / FILE), start=1):
        try:
            result = Result(**values)
        except TypeError as error:
            raise DataError(f"{folder / FILE}, line {number}, is not a finished run: {error}") from None
        by_key[result.key] = result
    return list(by_key.values())


def latest_series(results: list[Result]) -> dict[str, list[Result]]:
    """Return the results of each data set's last series, by its name; earlier ones may have other scales."""
    last = {Path(result.data).name: result.series for result in results}
    return {data: [result for result in results if result.series == series] for data, series in last.items()}


def whole_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of JSON lines; an incomplete last line is ignored."""
    if not file.exists():
        return
    text = file.read_text(encoding="utf-8")
    lines = text.split("\n")[:-1]
    for number, line in enumerate(lines, start=1):
        try:
            values = parse_json(line)
        except ValueError:
            raise DataError(f"{file}, line {number}, is not JSON; repair or remove it") from None
        yield values
