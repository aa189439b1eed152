"""Class names and label numbers: match one class map to another, sort names, pack rows."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from vitrine.data.sources.source import NO_LABEL, Labels, Source, Subset
from vitrine.errors import DataError
from vitrine.spelling import near_match, printable, some_of


def match_classes(source: Source, classes: Sequence[str]) -> Source:
    """Renumber the labels by `classes`, matched by name; refuse a label that is not among them."""
    if source.classes == tuple(classes):
        return source
    number = {name: index for index, name in enumerate(classes)}
    used = source.counts() > 0
    for name, is_used in zip(source.classes, used, strict=True):
        if is_used and name not in number:
            close = near_match(name, number)
            hint = f"did you mean {printable(close)}?" if close else f"they are {some_of(classes)}"
            raise DataError(
                f"{printable(source.address)} has the label {printable(name)}, which is not one of the "
                f"{len(number)} classes; {hint}",
                suggestions=[close] if close else [],
            )
    table = np.array([number.get(name, NO_LABEL) for name in source.classes] + [NO_LABEL], dtype=np.int32)
    matched = Subset(source, np.arange(len(source)))
    matched.classes = tuple(classes)
    matched.labels = table[source.labels]  # -1 selects the last entry: no label stays no label
    return matched


def require_classes(source: Source, address: str) -> None:
    """Refuse labels that are measurements where classes are needed."""
    if source.values is not None:
        raise DataError(
            f"the column {printable(source.classes[0])} of {printable(address)} holds numbers that hardly repeat, "
            f"from {source.values.min():g} to {source.values.max():g}: measurements, not classes; name the column "
            "class if each number is a class"
        )


def class_number(label: str, number: Mapping[str, int], *, where: str) -> int:
    """Return the number of a class by its name; refuse a label that is not among them."""
    if label not in number:
        raise DataError(
            f"{printable(where)} has the label {printable(label)}, which is not one of the "
            f"{len(number)} classes; they are {some_of(list(number))}"
        )
    return number[label]


def sorted_classes(names: Iterable[str]) -> list[str]:
    """Sort class names lexically, or numerically if all of them are numbers."""
    unique = set(names)
    if all(name.isdecimal() for name in unique):
        return sorted(unique, key=lambda name: (int(name), name))
    return sorted(unique)


def pack_labels(rows: Sequence[int] | Sequence[Sequence[int]], *, is_multi_label: bool) -> Labels:
    """Build the label array of a source: (N,), or (N, M) padded with -1."""
    if not is_multi_label:
        return np.asarray(rows, dtype=np.int32)
    sets: list[tuple[int, ...]] = [tuple(row) for row in rows]  # type: ignore[arg-type]
    packed = np.full((len(sets), max((len(row) for row in sets), default=1) or 1), NO_LABEL, dtype=np.int32)
    for number, row in enumerate(sets):
        packed[number, : len(row)] = row
    return packed
