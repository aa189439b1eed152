"""Messages of a run: its live line, its evaluations, and why it cannot continue."""

from collections.abc import Mapping
from pathlib import Path

from vitrine.errors import Advice, TryOption, TryVerb
from vitrine.training.config import TrainingConfig
from vitrine.training.stopping import NotFiniteError


def live_line(record: Mapping[str, float]) -> str:
    """Write the last record for the live line."""
    shown = [f"loss {record['loss']:.4f}"]
    if "accuracy" in record:
        shown.append(f"accuracy {100 * record['accuracy']:.1f} %")
    shown.append(f"lr {record['lr']:.2e}")
    shown.append(f"{record['images_per_second']:,.0f} images/s")
    shown.append(f"data {record['waiting_for_data']:.0%}")
    if "memory_gib" in record:
        shown.append(f"{record['memory_gib']:.1f} GiB")
    return ", ".join(shown)


def evaluation_in_words(scores: Mapping[str, float]) -> str:
    """Write the scores of an evaluation for people."""
    return ", ".join(
        f"{name.replace('_', ' ')} {100 * value:.1f} %"
        if name.endswith("accuracy")
        else f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in scores.items()
        if name != "collapsed"
    )


def not_finite(
    *,
    step: int,
    batch: str,
    config: TrainingConfig,
    is_bf16: bool,
    weights: Path | None,
    run: Path,
    saved_step: int,
) -> NotFiniteError:
    """Return the error for NaN or infinity: its step, its files, the last good weights, and what may help."""
    problem = (
        f"the loss or a gradient of step {step + 1} is NaN or infinity; the weights before it are in {weights}; "
        f"the batch was {batch}; try a lower learning rate (now {config.lr:g}) or a longer warm-up"
    )
    advice: list[Advice] = [TryOption("precision", "to compute exactly", "fp32")] if is_bf16 else []
    if saved_step < step:
        lower = {"set": f"training.lr={config.lr / 10:g}"}
        advice.append(TryVerb("resume", (str(run),), f"to continue from step {saved_step}", lower))
    else:
        problem += "; resuming cannot help, as the last checkpoint is of the same step: start a new run"
    return NotFiniteError(problem, advice=advice)
