"""The work behind `vitrine dedup`: compare a training set with test sets, write the pairs and a list to exclude."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrine.checkpoints import load
from vitrine.data.auditing.overlap import TRAIN, Features, Overlap, check_methods, find_overlap, write_pairs
from vitrine.data.sources.exclusions import write_exclusions
from vitrine.data.sources.opening import is_loose, open_source
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError
from vitrine.evaluation.features import extract_features
from vitrine.reports.data_pages import render_overlap
from vitrine.reports.pages import write_page
from vitrine.runtime.devices import choose_device
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.result import Result
from vitrine.runtime.threads import available_cores

PAGE, PAIRS, EXCLUDE = "pairs.html", "pairs.csv", "exclude.txt"


@dataclass(frozen=True, kw_only=True, repr=False)
class DedupResult(Result):
    """How many copies were found, by which method, and the files that list them."""

    train: str
    num_train: int
    num_test: dict[str, int]
    num_pairs: int
    by_method: dict[str, int]
    num_excluded: int
    num_unreadable: int
    wrote: tuple[Path, ...]


def find_copies(
    train: str,
    *,
    against: Sequence[str],
    methods: Sequence[str],
    model: str | None,
    least_cosine: float,
    device: str,
    is_mirrored: bool,
    split: str,
    against_split: str,
    out: Path | None,
    num_workers: int,
    is_cached: bool,
    is_overwriting: bool,
) -> DedupResult:
    """Find training images that are copies of test images and write the pairs into a folder."""
    if model is not None and "features" not in methods:
        methods = [*methods, "features"]
    check_methods(methods, has_features=model is not None)
    training = _open_set(train, split)
    tests = {name: _open_set(address, against_split) for name, address in _names(against).items()}
    roots = [source.root for source in (training, *tests.values()) if source.root is not None]
    folder = new_output_folder(
        out, verb="dedup", files=(PAGE, PAIRS, EXCLUDE), never_in=roots, is_overwriting=is_overwriting
    )
    with removed_if_empty(folder):
        features = None
        if model is not None:
            features = _features(
                model, {TRAIN: training, **tests}, device=device, num_workers=num_workers, is_cached=is_cached
            )
        overlap = find_overlap(
            training,
            tests,
            by=methods,
            features=features,
            least_cosine=least_cosine,
            is_mirrored=is_mirrored,
            num_workers=num_workers,
            is_cached=is_cached,
        )
    page = write_page(folder / PAGE, render_overlap(overlap, training, tests))
    return _written(folder, overlap, page=page, train=train)


def _written(folder: Path, overlap: Overlap, *, page: Path, train: str) -> DedupResult:
    """Write the lists beside the page."""
    write_pairs(overlap, folder / PAIRS)
    write_exclusions(overlap.excluded, folder / EXCLUDE)
    return DedupResult(
        train=train,
        num_train=overlap.num_train,
        num_test=overlap.num_test,
        num_pairs=len(overlap.pairs),
        by_method=overlap.by_method,
        num_excluded=len(overlap.excluded),
        num_unreadable=overlap.num_unreadable,
        wrote=(page, folder / PAIRS, folder / EXCLUDE),
    )


def _names(addresses: Sequence[str]) -> dict[str, str]:
    """Name each test set by the last part of its address, or by the whole address if those are not unique."""
    if not addresses:
        raise ConfigError("needs at least one test set", option="against")
    short = [Path(address).name or address for address in addresses]
    is_unique = len(set(short)) == len(short) and TRAIN not in short
    return dict(zip(short if is_unique else addresses, addresses, strict=True))


def _open_set(address: str, split: str) -> Source:
    """Open a set for comparison: empty classes are allowed, and a folder of loose images has no labels."""
    has_labels = not is_loose(address)
    return open_source(address, split=split, val_fraction=0, allow_empty_class=True, is_labelled=has_labels)


def _features(
    model: str, sources: Mapping[str, Source], *, device: str, num_workers: int, is_cached: bool
) -> dict[str, Features]:
    """Compute the features of every set, (N, D) each; rows of images that cannot be read are 0."""
    place = choose_device(device)
    loaded = load(model)
    loaded.model.to(place)
    features = {}
    for name, source in sources.items():
        extracted = extract_features(
            loaded.model,
            source,
            preprocess=loaded.preprocess,
            cache=is_cached,
            num_workers=num_workers or available_cores(),
            device=place,
            what=f"Extracting features of {name}",
        )
        rows = np.zeros((len(source), extracted.rows.shape[1]), dtype=np.float32)
        readable = np.setdiff1d(np.arange(len(source)), list(extracted.failures))
        rows[readable] = extracted.rows.numpy()
        features[name] = rows
    return features
