"""A task from outside the package: the loop trains whatever functions it is given, nothing edited."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrine.data.loading.loader import Batch
from vitrine.data.loading.order import training_rows
from vitrine.training.config import TrainingConfig
from vitrine.training.loop import train
from vitrine.training.task import Task

NUM_IMAGES, SIDE, BATCH = 16, 4, 8


def brightness_task(seen: list[dict[str, float]], best: list[str]) -> Task:
    """Regress the mean brightness of an image, which no objective of the package does."""
    pictures = torch.rand(NUM_IMAGES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))

    def batches(start: int, stop: int) -> Iterator[Batch]:
        for step in range(start, stop):
            rows = training_rows(step, length=NUM_IMAGES, batch_size=BATCH, seed=0)
            labels = torch.zeros(BATCH, dtype=torch.int64)
            yield Batch(images=pictures[rows.indices], labels=labels, rows=rows, failures={})

    def prepare(batch: Batch) -> tuple[Tensor, ...]:
        return batch.images.flatten(1), batch.images.mean(dim=(1, 2, 3))

    def loss_of(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        images, brightness = parts
        errors = module(images)[:, 0] - brightness
        return errors.square(), {"off_by": errors.abs().sum()}

    def evaluate(model: nn.Module) -> dict[str, float]:
        errors = model(pictures.flatten(1))[:, 0] - pictures.mean(dim=(1, 2, 3))
        seen.append({"fit": -float(errors.square().mean())})
        return seen[-1]

    return Task(
        batches=batches,
        prepare=prepare,
        loss_of=loss_of,
        evaluate=evaluate,
        metric="fit",
        on_best=lambda: best.append("kept"),
    )


def test_a_task_from_outside_is_trained_evaluated_and_its_best_weights_are_kept(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    best: list[str] = []
    torch.manual_seed(0)
    model = nn.Linear(SIDE * SIDE, 1)
    config = TrainingConfig(total_steps=60, batch_size=BATCH, lr=0.05, evaluate_every=20, log_every=20)
    outcome = train(model, brightness_task(seen, best), config=config, folder=tmp_path)
    fits = [evaluation["fit"] for evaluation in seen]
    assert len(fits) == 3 and fits[-1] > fits[0]
    assert outcome.best == max(fits) and outcome.best_step == 20 * (1 + fits.index(max(fits)))
    assert 1 <= len(best) <= 3
