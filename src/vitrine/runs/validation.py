"""Passes over a run's validation split, while it trains."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrine.data.loading.loader import Batch
    from vitrine.data.sources.source import Source
    from vitrine.recipes import Recipe
    from vitrine.runs.training_run import Setting
    from vitrine.runtime.processes import Processes


def num_judged(splits: "Mapping[str, Source]", recipe: "Recipe") -> int:
    """Count the images that one evaluation reads: without labels some are looked at again, beside trained ones."""
    from vitrine.runs.unlabelled_evaluation import MOST_PROBED

    if "val" not in splits:
        return 0
    count = len(splits["val"])
    if recipe.needs_labels:
        return count
    return count + sum(min(len(splits[name]), MOST_PROBED) for name in ("val", "train"))


def with_evaluations(recipe: "Recipe", splits: "Mapping[str, Source]") -> "Recipe":
    """Let a run have a learning curve where nothing was said about evaluations."""
    return recipe.with_evaluations_for(len(splits["train"]), num_judged=num_judged(splits, recipe))


def validation_passes(setting: "Setting", processes: "Processes") -> "Iterator[Batch | None]":
    """Yield this process's share of the split, every image once, then None until all have made as many passes.

    A sharded model gathers its weights in every pass, so it has to run for None too, on anything.
    """
    from vitrine.data.loading.loader import Loader

    source, world_size = setting.splits["val"], processes.world_size
    batch = evaluation_batch(setting, world_size)
    left = math.ceil(math.ceil(len(source) / world_size) / (batch // world_size))
    with Loader(
        source, setting.preprocess, batch_size=batch, rank=processes.rank, world_size=world_size,
        num_workers=setting.workers, device=processes.device,
    ) as loader:  # fmt: skip
        for found in loader.evaluation_batches():
            yield found
            left -= 1
    yield from [None] * left


def evaluation_batch(setting: "Setting", world_size: int) -> int:
    """Return a batch over all processes that is small enough to go with what training holds."""
    return min(setting.recipe.training.batch_size, 64 * world_size) // world_size * world_size or world_size


def unjudged(splits: "Mapping[str, Source]") -> tuple[str, ...]:
    """Name the classes that the accuracy says nothing about, as of so few images none is held out."""
    from vitrine.spelling import some_of

    train, val = splits["train"], splits["val"]
    names = [
        name
        for name, trained, held_out in zip(train.classes, train.counts(), val.counts(), strict=True)
        if trained and not held_out
    ]
    return (f"Not judged, as no image is held out: {some_of(names)}",) if names else ()
