"""The split of a run: which images stay on one side, and how listed or changed images move it."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from vitrine.data.auditing.near_duplicates import near_pairs
from vitrine.data.auditing.survey import survey_images
from vitrine.data.sources.exclusions import leave_out
from vitrine.data.sources.grouping import Indices, group_images, joined_pairs, likely_grouping, merged
from vitrine.data.sources.opening import open_splits
from vitrine.data.sources.source import Source, Subset
from vitrine.data.sources.splitting import write_split
from vitrine.errors import TryOption
from vitrine.runtime.progress import notice

# Images up to which near-duplicates are searched for before a split: about ten seconds on two cores.
MOST_COMPARED = 20_000


def split_groups(source: Source, by: str | None, *, workers: int) -> Indices:
    """Return the groups that a split keeps together: near-duplicates, and those that were asked for.

    If none were asked for and groups look likely, report it: similar images on both sides make the score optimistic.
    """
    groups = [np.arange(len(source), dtype=np.int64)]
    if by is not None:
        groups.append(group_images(source, by))
    elif (likely := likely_grouping(source)) is not None:
        value, evidence = likely
        notice(
            f"Images may belong together: {evidence}. If they are split, the score on held-out images is optimistic",
            advice=[TryOption("group", "to keep them on one side", value)],
        )
    if source.root is None:  # generated pictures
        return merged(groups)
    if len(source) > MOST_COMPARED:
        notice(f"{len(source):,} images are too many to keep near-duplicates on one side of the split")
        return merged(groups)
    survey = survey_images(source, num_workers=workers)
    pairs = near_pairs(survey.thumbnails, colours=survey.colours)
    near = joined_pairs(len(source), zip(pairs.queries.tolist(), pairs.others.tolist(), strict=True))
    return merged([*groups, near])


def update_split(address: str, split_file: Path, *, needs_labels: bool = True) -> None:
    """Write the split again for changed data: held-out images stay held out, new images are trained on."""

    with split_file.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        side = {row["path"]: row["split"] for row in csv.DictReader(file)}
    source = open_splits(address, val_fraction=0, allow_empty_class=True, is_labelled=needs_labels)["train"]
    held_out = np.array([side.get(source.name(row)) == "val" for row in range(len(source))])
    write_split(source, split_file, {"train": np.flatnonzero(~held_out), "val": np.flatnonzero(held_out)})


def undivided(splits: Mapping[str, Source]) -> Subset | None:
    """Return the training images before some of them were held out; None if the validation set is one of its own."""
    train, val = splits["train"], splits.get("val")
    if not isinstance(train, Subset) or not isinstance(val, Subset) or train.source is not val.source:
        return None
    return Subset(train.source, np.sort(np.concatenate([train.indices, val.indices])))


def without(splits: Mapping[str, Source], names: Iterable[str]) -> dict[str, Source]:
    """Exclude listed images from the training images and those held out of them: a sweep trains on both."""
    whole = undivided(splits)
    if whole is None:
        return {"train": leave_out(splits["train"], names)}
    kept = leave_out(whole, names)
    assert isinstance(kept, Subset)
    parts = [part for part in (splits["train"], splits["val"]) if isinstance(part, Subset)]
    train, val = (Subset(part, np.flatnonzero(np.isin(part.indices, kept.indices))) for part in parts)
    return {"train": train, "val": val}
