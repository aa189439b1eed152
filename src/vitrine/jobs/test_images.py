"""Choose the images to evaluate a model on; warn if it was trained on them, refuse more than fit into memory."""

import torch

from vitrine.data.sources.opening import list_splits
from vitrine.data.sources.source import Source
from vitrine.errors import DataError, TryVerb
from vitrine.evaluation.test_sets import open_test_split
from vitrine.models.memory import GIB
from vitrine.runs.trained_data import num_trained_on, splits_of_run, trained_on
from vitrine.runtime.hardware import memory_of
from vitrine.runtime.progress import notice
from vitrine.spelling import counted

HELD_OUT = "held out"
# Peak of an evaluation in copies of its outputs: batches, all of them together, probabilities in float64 (measured:
# 1.36 GB for 300,000 images of 300 classes).
COPIES, BYTES = 4, 4


def open_test_images(model: str, data: str, split: str | None) -> tuple[str, Source]:
    """Open the images to evaluate `model` on, and name their split.

    If the model was trained on data without splits, only the images that its run held out are used. The name of
    the split states whether the model was trained on it.
    """
    folder = trained_on(model, data) if split is None else None
    if folder is not None and not list_splits(data):
        splits = splits_of_run(folder) or {}
        if "val" in splits:
            notice(f"{folder} was trained on {data}: evaluating on the images that it held out")
            return HELD_OUT, splits["val"]
        notice(
            f"The score below is optimistic: {folder} was trained on all images of {data}, and none was held out. "
            "Evaluate on images that it has never seen."
        )
        name, source = open_test_split(data, split)
        return f"{name}, trained on", source
    name, source = open_test_split(data, split)
    known = num_trained_on(model, source)
    if known:
        notice(
            f"The score below is optimistic: {known:,} of these {counted(len(source), 'image')} were also used to "
            f"train {model}. Evaluate on the whole data set of the run to use only its held-out images."
        )
        return f"{name}, {'' if known == len(source) else 'partly '}trained on", source
    return name, source


def require_memory(source: Source, *, num_outputs: int, model: str, data: str) -> None:
    """Refuse, before the work, a test set whose outputs do not fit into memory."""
    needed, limit = COPIES * BYTES * num_outputs * len(source), memory_of(torch.device("cpu"))
    if limit is not None and needed > limit:
        raise DataError(
            f"the outputs for {counted(len(source), 'image')} and {num_outputs:,} classes need "
            f"{needed / GIB:,.0f} GiB of memory, and this machine has {limit / GIB:,.0f}",
            advice=[
                TryVerb("predict", (model, data), "to write the answers in parts", {"out": "answers"}),
                TryVerb("evaluate", ("answers",), "to score them"),
            ],
        )
