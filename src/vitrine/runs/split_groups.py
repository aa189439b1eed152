"""Images that a split keeps on one side: near-duplicates, and groups that were asked for."""

import numpy as np

from vitrine.data.auditing.near_duplicates import near_pairs
from vitrine.data.auditing.survey import survey_images
from vitrine.data.sources.grouping import Indices, group_images, joined_pairs, likely_grouping, merged
from vitrine.data.sources.source import Source
from vitrine.errors import TryOption
from vitrine.runtime.progress import notice

# Images up to which near-duplicates are searched for before a split: about ten seconds on two cores.
MOST_COMPARED = 20_000


def split_groups(source: Source, by: str | None, *, workers: int) -> Indices:
    """Return the groups that a split keeps together: near-duplicates, and those that were asked for.

    If none were asked for and groups look likely, report it: similar images on both sides make the score too good.
    """
    groups = [np.arange(len(source), dtype=np.int64)]
    if by is not None:
        groups.append(group_images(source, by))
    elif (likely := likely_grouping(source)) is not None:
        value, evidence = likely
        notice(
            f"Images may belong together: {evidence}. If they are split, the score on held-out images is too good",
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
