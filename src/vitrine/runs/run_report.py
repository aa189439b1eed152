"""The page of a run, made at its end, when it is stopped, and by `vitrine report`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import counted, duration

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from vitrine.checkpoints import Loaded
    from vitrine.data.sources.source import Source
    from vitrine.evaluation.scoring import Mistake, SplitScore
    from vitrine.reports.run_account import RunAccount
    from vitrine.reports.run_page import Attention

MOST_WORST, MOST_MISTAKES = 5, 3
JUDGED_BY = "val"
CARD_SIDE = 192


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The page, and the headline of what it shows."""

    folder: Path
    file: Path | None
    """None where pages cannot be made here."""
    steps: int
    accuracy: float | None = None
    interval: tuple[float, float] | None = None
    num_images: int = 0
    worst: tuple[tuple[str, float], ...] = ()
    """Classes with the lowest F1, or average precision, the worst first."""
    mistakes: "tuple[Mistake, ...]" = ()
    """Images taken for something else, the most confident first."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.folder}: {counted(self.steps, 'step')}"]
        if self.accuracy is not None and self.interval is not None:
            low, high = self.interval
            lines[0] += (
                f", accuracy {100 * self.accuracy:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}) on "
                f"{counted(self.num_images, 'validation image')}"
            )
        lines += worst_lines(self.worst, self.mistakes)
        lines += self.notes
        if self.file is not None:
            lines += [f"Wrote {self.file}", f"Next: open {self.file} in a browser"]
        return "\n".join(lines)


def worst_lines(worst: Sequence[tuple[str, float]], mistakes: "Sequence[Mistake]") -> list[str]:
    """Name the classes that fare worst, and the images that are taken for something else with most confidence."""
    lines = []
    if named := [f"{name} {100 * value:.0f} %" for name, value in worst if value < 1]:
        lines.append(f"Worst classes by F1: {', '.join(named)}")
    if mistakes:
        lines.append("Most confident mistakes:")
        lines += [f"  {found.path}: {found.predicted} ({100 * found.confidence:.0f} %)" for found in mistakes]
    return lines


def write_report(
    folder: Path,
    *,
    splits: "Mapping[str, Source] | None" = None,
    device: "torch.device | str" = "cpu",
    workers: int = 2,
    out: Path | None = None,
    notes: Sequence[str] = (),
) -> RunReport:
    """Judge a run's model on its validation split, where both are there, and write the page of the run.

    Every process must come here; the first one writes.
    """
    from vitrine.checkpoints import load
    from vitrine.evaluation.ranks import this_rank
    from vitrine.reports.run_account import read_account
    from vitrine.runtime.progress import quiet

    account = read_account(folder)
    judged, loaded = None, None
    if splits is not None and JUDGED_BY in splits and account.is_finished and _has_classes(account):
        with quiet():
            loaded = load(RunFolder(folder).model)
        judged = _judged(loaded, splits[JUDGED_BY], device=device, workers=workers)
    interval = None
    if judged is not None and judged.accuracy is not None:
        from vitrine.evaluation.bootstrap import wilson_interval

        interval = wilson_interval(judged.accuracy, judged.figures.num_images)
    file = None
    if this_rank()[0] == 0:
        file = _page(
            account,
            loaded,
            judged,
            interval=interval,
            device=device,
            notes=notes,
            file=out or RunFolder(folder).report_file,
        )
    return RunReport(
        folder=folder,
        file=file,
        steps=account.steps,
        accuracy=None if judged is None else judged.accuracy,
        interval=interval,
        num_images=0 if judged is None else judged.figures.num_images,
        worst=() if judged is None else tuple(judged.worst_classes[:MOST_WORST]),
        mistakes=() if judged is None else judged.mistakes(MOST_MISTAKES),
        notes=tuple(notes),
    )


def _has_classes(account: "RunAccount") -> bool:
    return account.run["model"]["num_classes"] is not None


def _judged(
    loaded: "Loaded", source: "Source", *, device: "torch.device | str", workers: int
) -> "SplitScore":
    from vitrine.evaluation.outputs import run_model
    from vitrine.evaluation.scoring import score_split

    outputs = run_model(
        loaded.model.to(device),
        source,
        preprocess=loaded.preprocess,
        num_workers=workers,
        device=device,
        what="Judging the model",
    )
    return score_split(outputs, source, split="validation")


def _page(
    account: "RunAccount",
    loaded: "Loaded | None",
    judged: "SplitScore | None",
    *,
    interval: tuple[float, float] | None,
    device: "torch.device | str",
    notes: Sequence[str],
    file: Path,
) -> Path:
    from vitrine.reports.pages import write_page
    from vitrine.reports.run_page import render_run

    return write_page(
        file,
        render_run(
            account,
            score=judged,
            interval=interval,
            attention=None if loaded is None or judged is None else _attention(loaded, judged.source, device),
            facts=_facts(account),
            notes=notes,
        ),
    )


def _attention(loaded: "Loaded", source: "Source", device: "torch.device | str") -> "Attention | None":
    """Return the function that shows where the model looked; None where it has no attention or nothing can draw."""
    import importlib.util

    from vitrine.models import ViT

    if not isinstance(loaded.model, ViT) or importlib.util.find_spec("matplotlib") is None:
        return None

    def pictures(indices: "NDArray[np.int64]") -> list[str | None]:
        import numpy as np
        import torch

        from vitrine.inspection.pictures import as_shown
        from vitrine.inspection.rollout import rollout
        from vitrine.reports.figure_style import overlay
        from vitrine.reports.thumbnails import data_url

        preprocess = loaded.preprocess
        examples = [source.read(int(index)) for index in indices]
        pixels = torch.stack([preprocess.pixels(preprocess.decode(e.data, name=e.name)) for e in examples])
        maps = rollout(loaded.model, preprocess.normalise(pixels.to(device)))  # (B, GH, GW)
        return [
            data_url((255 * overlay(picture, weights)).round().astype(np.uint8), CARD_SIDE)
            for picture, weights in zip(as_shown(pixels), maps, strict=True)
        ]

    return pictures


def _facts(account: "RunAccount") -> list[tuple[str, str]]:
    """Collect the figures at the top of the page: model, time, speed, work."""
    from vitrine.checkpoints.record import config_from_json, variant_of
    from vitrine.models.config import shown
    from vitrine.models.cost import cost_of, training_exaflops

    config = config_from_json(account.run["model"])
    cost = cost_of(config)
    seen = account.steps * account.batch_size
    seconds = account.training_seconds
    words = f"{variant_of(config) or 'a model'} at {shown(config.image_size)} px"
    if account.run["verb"] == "finetune":
        words += f", from {account.recipe['model']}"
    facts = [
        (f"{cost.params / 1e6:.1f} M", f"parameters; {words}"),
        (f"{account.steps:,}", f"steps of {account.batch_size}, {seen:,} images seen"),
    ]
    if seconds:
        machine = account.environment.get("gpu") or "a CPU"
        facts.append((duration(seconds), f"training on {machine}, {seen / seconds:,.0f} images/s"))
    teraflops = 1e6 * training_exaflops(cost.macs, images=seen, epochs=1)
    large = [
        (f"{teraflops / 1e3:,.3g}", "petaFLOPs of training"),
        (f"{teraflops:,.3g}", "teraFLOPs of training"),
    ]
    facts.append(large[teraflops < 1e3])
    return facts
