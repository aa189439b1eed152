"""What a run says while it goes on: its live line, its evaluations, and why it cannot go on."""

from collections.abc import Mapping
from pathlib import Path

from vitrine.training.config import TrainingConfig


def live_line(record: Mapping[str, float]) -> str:
    """Write what was logged last for the one line that people watch."""
    shown = [f"loss {record['loss']:.4f}"]
    if "accuracy" in record:
        shown.append(f"accuracy {100 * record['accuracy']:.1f} %")
    shown.append(f"lr {record['lr']:.2e}")
    shown.append(f"{record['images_per_second']:,.0f} images/s")
    shown.append(f"data {record['waiting_for_data']:.0%}")
    if "memory_gib" in record:
        shown.append(f"{record['memory_gib']:.1f} GiB")
    return ", ".join(shown)


def evaluation_in_words(found: Mapping[str, float]) -> str:
    """Write the numbers of an evaluation for people."""
    return ", ".join(
        f"{name.replace('_', ' ')} {100 * value:.1f} %"
        if name.endswith("accuracy")
        else f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in found.items()
        if name != "collapsed"
    )


def why_not_finite(
    *,
    step: int,
    batch: str,
    config: TrainingConfig,
    is_rough: bool,
    weights: Path | None,
    run: Path,
    saved_step: int,
) -> str:
    """Say at which step and on which files the numbers ended, where the weights are, and what may help."""
    advice = (
        f"go on from step {saved_step} with: vitrine resume {run} --set training.lr={config.lr / 10:g}"
        if saved_step < step
        else "then start again: at no rate is there a way on from the last checkpoint"
    )
    return (
        f"the loss or a gradient of step {step + 1} is not finite; the weights of the step before are in "
        f"{weights}; the batch was {batch}; try a lower learning rate (now {config.lr:g})"
        f"{', --precision fp32' if is_rough else ''} or a longer warm-up; {advice}"
    )
