"""The images that a model is evaluated on, and their labels numbered as the model numbers its classes."""

from collections.abc import Sequence

from vitrine.data.sources.labels import match_classes, require_classes
from vitrine.data.sources.opening import list_splits, open_source
from vitrine.data.sources.source import ALL, NO_LABEL, Source
from vitrine.errors import ConfigError, DataError, TryOption, TryVerb
from vitrine.evaluation.real import RealLabels
from vitrine.spelling import counted


def open_test_split(data: str, split: str | None) -> tuple[str, Source]:
    """Open the split to test on and return its name: the given one, else test, val, or a set without splits."""
    if split is None:
        own = list_splits(data)
        split = next((name for name in ("test", "val") if name in own), ALL)
        if split == ALL and "train" in own:
            raise DataError(
                f"{data} has only {' and '.join(own)}, which the model may have been trained on",
                advice=[TryOption("split", "to evaluate on one of them", own[0])],
            )
    # A test set may lack classes that the model knows: they are counted, not refused.
    return split, open_source(data, split=split, allow_empty_class=True)


def in_model_classes(
    source: Source, classes: Sequence[str] | None, *, num_outputs: int | None, by_order: bool = False
) -> Source:
    """Number the labels as the model does: by name, or by order if asked or if the model has no class names."""
    if num_outputs is None:
        raise ConfigError(
            "the model has no classification head, so it makes no predictions",
            advice=[TryVerb("fewshot", ("MODEL", source.address), "to evaluate its features")],
        )
    if not source.is_labelled:
        raise DataError(f"{source.address} has no labels to compare predictions with")
    require_classes(source, source.address)
    if classes is not None and not by_order:
        try:
            source = match_classes(source, classes)
        except DataError as error:
            if len(source.classes) != num_outputs:
                raise
            # ImageNet's folders are numbers and most models' classes are words, in the same order.
            advice = TryOption("by_order", "if both lists are in the same order", True)
            raise DataError(
                error.problem, advice=[*error.advice, advice], suggestions=error.suggestions
            ) from None
    elif len(source.classes) != num_outputs:
        why = "" if by_order else "the model has no class names, so classes are matched by order, but "
        raise DataError(
            f"{why}{source.address} has {len(source.classes)} classes and the model has {num_outputs} outputs; "
            "they must be equal"
        )
    if not source.is_multi_label and bool((source.labels == NO_LABEL).any()):
        count = int((source.labels == NO_LABEL).sum())
        raise DataError(
            f"{source.address} has {counted(count, 'image')} without a label; label or remove such images"
        )
    return source


def with_numbers(source: Source) -> Source:
    """Refuse images without numbers to compare predictions with."""
    if source.values is None:
        raise DataError(
            f"{source.address} has classes as labels, and the model predicts a number; use a table with a column "
            "value"
        )
    return source


def in_model_numbers(real: RealLabels, source: Source, matched: Source) -> RealLabels:
    """Number ReaL's lists, which use the data set's class numbers, as the model does."""
    if source.classes == matched.classes:
        return real
    number = {name: index for index, name in enumerate(matched.classes)}
    most = max((max(accepted, default=0) for accepted in real), default=0)
    if most >= len(source.classes):
        raise DataError(
            f"real.json names class {most}, but {source.address} has {len(source.classes)} classes; it must be "
            "ImageNet's validation set with all its class folders"
        )
    return [[number.get(source.classes[k], NO_LABEL) for k in accepted] for accepted in real]
