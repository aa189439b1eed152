"""The records of a study: runs, each a frozen record with its recipe, and a rule that compares their results."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitrine.models.config import ModelConfig
from vitrine.recipes import Recipe
from vitrine.reports.charts import Chart
from vitrine.studies.published import Beside
from vitrine.studies.results import Results
from vitrine.studies.run_keys import later_fields, settings_of
from vitrine.studies.scales import Scale
from vitrine.studies.verdicts import Finding

Role = Literal["measured", "preparation", "search", "check"]
Work = Literal["training", "speed"]
Use = Literal["weights", "teacher"]
Inspects = Literal["", "positions", "attention"]
# Powers of the step between learning rates that a search tries first.
FIRST_GRID = (-1, 1)
# Settings for when and where a run is executed, which do not change its result.
PLACE_FIELDS = ("needs_rate", "on", "turn", "folder", "before")
# The fields of a run that its key depends on, beside model and recipe (`vitrine.studies.run_keys`).
KEY_FIELDS = (
    "study", "group", "seed", "settings", "data", "num_images", "after", "keeps_positions", "probes", "role", "work",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything that a list of runs depends on."""

    scale: Scale
    seed: int
    num_classes: int
    num_images: int
    """Training images of the data set."""
    target_classes: tuple[int, ...] = ()
    """Classes of each data set for transfer; empty if that is the data set itself."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """The learning rate that a search has chosen for each method."""
    grids: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Smallest and largest power of the step between rates that are tried, where they are not the first ones."""

    @property
    def targets(self) -> tuple[tuple[str, int], ...]:
        """Name and classes of every set that is fine-tuned on."""
        named = tuple((f"target{number}", classes) for number, classes in enumerate(self.target_classes))
        return named or (("data", self.num_classes),)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run, or one measurement of speed: a pure function of scale and seed."""

    study: str
    group: str
    """The same for all seeds."""
    seed: int
    settings: dict[str, Any]
    """The varied settings, for tables and rules."""
    model: ModelConfig
    recipe: Recipe
    data: str = "data"
    """The data set that it reads: `data`, or `target0`..."""
    num_images: int | None = None
    """Number of training images, drawn at random by the seed; None for all."""
    after: str | None = None
    """The run that must be finished first."""
    uses: Use = "weights"
    """What it uses of that run: weights to start from, or the whole model as its teacher."""
    keeps_positions: bool = True
    """Whether position embeddings from another resolution are resampled; otherwise they are new."""
    probes: bool = False
    """Whether 5-shot accuracy is measured on the target."""
    inspects: Inspects = ""
    """What is measured inside the trained model: similarity of positions, or distance of attention."""
    role: Role = "measured"
    work: Work = "training"
    needs_rate: str = ""
    """The method whose search must have chosen a rate first."""
    on: str = ""
    """Name of the data set, if a call has several."""
    turn: int = 0
    """The position of that data set in the call."""
    folder: Path | None = None
    """Folder of its checkpoints; set by the plan."""
    before: Path | None = None
    """Folder of the run that must be finished first."""

    @property
    def name(self) -> str:
        """A name that is unique in the study and valid as a folder name."""
        return f"{self.group}-seed{self.seed}"

    def key(self, fingerprints: Mapping[str, str], *, before: str = "") -> str:
        """Hash everything that determines the result, including the data and the run that it depends on."""
        values = {
            **{name: getattr(self, name) for name in KEY_FIELDS},
            **later_fields(self, (*KEY_FIELDS, *PLACE_FIELDS, "model", "recipe")),
            **settings_of(self.model, self.recipe),
            "data_is": fingerprints.get(self.data, ""),
            "before": before,
        }
        if self.probes:
            values["target_is"] = fingerprints.get("target0", "")
        return hash_of(values)


@dataclass(frozen=True, kw_only=True)
class Study:
    """One experiment of the paper."""

    name: str
    title: str
    where: str
    """Section, table and figure of the paper."""
    claim: str
    rule: str
    """How the verdict follows from the results, in words."""
    runs: Callable[[Setup], tuple[Run, ...]]
    findings: Callable[[Results], Sequence[Finding]]
    """The rule: compares results with the claim."""
    charts: Callable[[Results], Sequence[Chart]]
    search: Callable[[Setup], tuple[Run, ...]] | None = None
    """Short runs on the first data set that choose the learning rate of each method on held-out images."""
    widens: bool = False
    """Whether the search tries further rates (`Setup.grids`) while the best is at the edge of those tried."""
    remarks: Callable[[Results], Sequence[str]] | None = None
    """Remarks on the results, in addition to the rule."""
    published: Callable[[Results], Sequence[Beside]] | None = None
    """Figures of the paper beside the arms that correspond to them."""
    published_as: str = ""
    """Table, model and data of those figures."""
    least_images: int = 0
    """Images of pre-training that the claim presumes; smaller sets cannot dispute it."""
    measure: str = "accuracy"
    """The measure that the rule compares."""
    seeds: int = 3
    departures: str = ""
    """Differences of the small scales from the paper, beyond model and data."""


def hash_of(values: Mapping[str, Any]) -> str:
    """Return a short hash of plain values."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def keys_of(runs: Sequence[Run], fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Return the key of every run by its name; it depends on the key of the run that must be finished first."""
    keys: dict[str, str] = {}
    for run in in_order(runs):
        keys[run.name] = run.key(fingerprints, before=keys[run.after] if run.after else "")
    return keys


def in_order(runs: Sequence[Run]) -> list[Run]:
    """Sort runs so that each comes after the one whose weights it needs; otherwise keep their order."""
    by_name = {run.name: run for run in runs}
    assert len(by_name) == len(runs), "two runs of a study have one name"
    ordered: dict[str, Run] = {}

    def add(run: Run) -> None:
        if run.name in ordered:
            return
        if run.after is not None:
            add(by_name[run.after])
        ordered[run.name] = run

    for run in runs:
        add(run)
    return list(ordered.values())
