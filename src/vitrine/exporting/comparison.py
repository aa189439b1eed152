"""Compare the runtimes of an export with the model: agreement of the outputs, and speed."""

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrine.checkpoints.libraries import NoAnswerError
from vitrine.evaluation.speed import time_in_turns
from vitrine.exporting.exported import Subject
from vitrine.exporting.proof import Agreement, answers_of, compare, not_compared, reference
from vitrine.models import Model
from vitrine.runtime.progress import track

BATCHES = (1, 8)
# Three turns of a fifth of a second show which is faster; they do not replace a benchmark.
TURNS, TURN_SECONDS = 3, 0.2


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Milliseconds for one batch, the median of the turns."""

    engine: str
    precision: str
    batch_size: int
    milliseconds: float
    ratio: float | None = None
    """Its time divided by that of fp32 in the same engine, the median of the turns; None without fp32."""


def prove(model: Model, subjects: Sequence[Subject], pixels: Tensor) -> tuple[Agreement, ...]:
    """Compare every subject's answers with the model's on normalised images (N, C, height, width)."""
    expected = answers_of(reference(model), pixels)
    proofs = []
    for subject in track(subjects, "Proving"):
        if subject.answer is None:
            proofs.append(not_compared(subject.name, subject.reason))
            continue
        try:
            proofs.append(
                compare(
                    subject.name,
                    subject.answer,
                    expected=expected,
                    images=pixels,
                    precision=subject.precision,
                    explained=subject.explained,
                )
            )
        except NoAnswerError as error:
            proofs.append(not_compared(subject.name, str(error)))
    return tuple(proofs)


def time_in_batches(model: Model, subjects: Sequence[Subject], pixels: Tensor) -> tuple[Timing, ...]:
    """Time the model and the subjects in turns, on one image and on several."""
    timings = []
    with torch.inference_mode():
        for size in track(BATCHES, "Timing"):
            images = pixels[torch.arange(size) % len(pixels)].contiguous()
            runs: dict[tuple[str, str], Callable[[], object]] = {
                ("torch", "fp32"): functools.partial(model, images)
            }
            for subject in subjects:
                # A file that Vitrine reads back is the same model in torch.
                if subject.answer is not None and not subject.name.startswith("Vitrine"):
                    runs[subject.name, subject.precision] = functools.partial(subject.answer, images)
            measured = time_in_turns(runs, turns=TURNS, turn_seconds=TURN_SECONDS)
            timings += [
                Timing(
                    engine=engine,
                    precision=precision,
                    batch_size=size,
                    milliseconds=1000 * statistics.median(seconds),
                    ratio=_ratio(seconds, measured.get((engine, "fp32"))),
                )
                for (engine, precision), seconds in measured.items()
            ]
    return tuple(timings)


def _ratio(seconds: Sequence[float], exact: Sequence[float] | None) -> float | None:
    """Divide turn by turn, because other load on the machine varies."""
    if exact is None or exact is seconds:
        return None
    return statistics.median(mine / theirs for mine, theirs in zip(seconds, exact, strict=True))
