"""The data that a run was trained on, opened again: what was held out, and whether other images were trained on."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path

from vitrine.data.sources.opening import open_splits
from vitrine.data.sources.source import Source
from vitrine.errors import VitrineError
from vitrine.recipes.recipe_values import from_yaml
from vitrine.runtime.find_run import run_of_model
from vitrine.runtime.progress import quiet
from vitrine.runtime.run_folder import RunFolder


def splits_of_run(folder: RunFolder) -> dict[str, Source] | None:
    """Open a run's data with the split that it was trained with; None if nothing was held out."""
    run = folder.read_record()
    if run.trains_on_all or run.model["num_classes"] is None:
        return None
    opened = functools.partial(
        open_splits,
        run.data,
        seed=from_yaml(folder.read_recipe()).training.seed,
        val_fraction=run.hold_out,
        split_file=None if run.hold_out == 0 else folder.split_file,
    )
    splits = opened(allow_empty_class=True)
    if list(splits["train"].classes) == folder.read_classes():
        return splits
    with quiet():  # the run skipped classes without images
        return opened(allow_empty_class=False)


def trained_on(model: str | Path, data: str) -> RunFolder | None:
    """Return the run that trained a model, if it was trained on this very data; None otherwise."""
    folder = run_of_model(model)
    if folder is None:
        return None
    address = folder.read_record().data
    is_same = address == data or (Path(data).exists() and os.path.realpath(address) == os.path.realpath(data))
    return folder if is_same else None


def num_trained_on(model: str | Path, source: Source) -> int:
    """Count the images that the run of a model was trained on, by their files; 0 where that is unknown."""
    folder = run_of_model(model)
    if folder is None or source.root is None:
        return 0
    address = folder.read_record().data
    if not Path(address).exists():
        return 0
    try:
        splits = splits_of_run(folder) or open_splits(address, val_fraction=0, allow_empty_class=True)
    except VitrineError:  # the data has changed
        return 0
    folders = functools.cache(os.path.realpath)

    def places(images: Source) -> Iterator[tuple[str, str]]:
        for path in filter(None, map(images.path, range(len(images)))):
            yield folders(str(path.parent)), path.name

    trained = set(places(splits["train"]))
    return sum(place in trained for place in places(source))
