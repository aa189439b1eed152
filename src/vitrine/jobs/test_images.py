"""Choose the images to evaluate a model on; warn if it was trained on them."""

from vitrine.data.sources.opening import list_splits
from vitrine.data.sources.source import Source
from vitrine.evaluation.test_sets import open_test_split
from vitrine.runs.trained_data import num_trained_on, splits_of_run, trained_on
from vitrine.runtime.progress import notice
from vitrine.spelling import counted

HELD_OUT = "held out"


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
