"""`vitrine dedup`: find training images that are copies of test images, and list them to be left out."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_model, as_path, as_texts
from vitrine.spelling import counted

if TYPE_CHECKING:
    from vitrine.data.auditing.overlap import Features
    from vitrine.data.sources.source import Source


@dataclass(frozen=True, kw_only=True)
class DedupResult:
    """How many copies were found, by which method, and the files that list them."""

    train: str
    num_train: int
    num_test: dict[str, int]
    num_pairs: int
    by_method: dict[str, int]
    num_excluded: int
    num_unreadable: int
    wrote: tuple[Path, ...]

    def __str__(self) -> str:
        tests = ", ".join(f"{name} ({count:,})" for name, count in self.num_test.items())
        methods = ", ".join(f"{count:,} by {method}" for method, count in self.by_method.items())
        lines = [
            f"{counted(self.num_train, 'training image')} against {tests}",
            f"Copies of test images: {counted(self.num_excluded, 'training image')}, "
            f"{counted(self.num_pairs, 'pair')}" + (f", {methods}" if methods else "")
            if self.num_pairs
            else "No training image is a copy of a test image",
        ]
        if self.num_unreadable:
            lines.append(f"Not compared, as they cannot be read: {counted(self.num_unreadable, 'file')}")
        lines += [f"Wrote {path}" for path in self.wrote]
        if self.num_excluded:
            exclude = next(path for path in self.wrote if path.name == "exclude.txt")
            lines.append(f"Next: look at the pairs, then train with --exclude {shlex.quote(str(exclude))}")
        return "\n".join(lines)


@documented
def dedup(
    train: Annotated[
        str | Path, Doc("Training set: folder, manifest, shards, or the name of a built-in data set")
    ],
    *,
    against: Annotated[
        str | Path | Sequence[str | Path], Doc("Test set; may be repeated for several test sets")
    ],
    by: Annotated[
        str,
        Doc(
            "Search methods, separated by commas: hash (equal files), perceptual (shifted, brightened, "
            "re-compressed), features"
        ),
    ] = "hash,perceptual",
    model: Annotated[
        str | Path | None,
        Doc("Also compare the features of this model: run folder, weights file, hub id or variant name"),
    ] = None,
    least_cosine: Annotated[
        float, Doc("Minimum cosine similarity for two images to count as duplicates; depends on the model")
    ] = 0.95,
    device: options.Device = "auto",
    mirrored: Annotated[bool, Doc("Also find horizontally flipped copies")] = False,
    split: Annotated[str, Doc("Split of the training set to search; all means every image")] = "all",
    against_split: Annotated[str, Doc("Split of each test set to compare with")] = "all",
    out: Annotated[
        Path | str | None,
        Doc("Folder for pairs.html, pairs.csv and exclude.txt [default: a new dated folder under ./runs]"),
    ] = None,
    workers: Annotated[int, Doc("Files read in parallel; 0 means one per processor")] = 0,
    cache: Annotated[bool, Doc("Reuse the results of an earlier search of unchanged files")] = True,
    overwrite: Annotated[bool, Doc("Replace the results in the output folder")] = False,
) -> DedupResult:
    """Find training images that are copies of test images, and write a list that training can skip."""
    train, against, out = str(train), as_texts(against), as_path(out)
    model = None if model is None else as_model(model)
    from vitrine.data.auditing.overlap import TRAIN, check_methods, find_overlap, write_pairs
    from vitrine.data.sources.exclusions import write_exclusions
    from vitrine.runtime.output_folder import new_output_folder, removed_if_empty

    methods = tuple(part.strip() for part in by.split(",") if part.strip())
    if model is not None and "features" not in methods:
        methods = (*methods, "features")
    check_methods(methods, has_features=model is not None)
    training = _open(train, split)
    tests = {name: _open(address, against_split) for name, address in _names(against).items()}
    roots = [source.root for source in (training, *tests.values()) if source.root is not None]
    files = ("pairs.html", "pairs.csv", "exclude.txt")
    folder = new_output_folder(out, verb="dedup", files=files, never_in=roots, is_overwriting=overwrite)
    with removed_if_empty(folder):
        features = None
        if model is not None:
            features = _features(
                model, {TRAIN: training, **tests}, device=device, workers=workers, cache=cache
            )
        overlap = find_overlap(
            training,
            tests,
            by=methods,
            features=features,
            least_cosine=least_cosine,
            is_mirrored=mirrored,
            num_workers=workers,
            is_cached=cache,
        )
    write_pairs(overlap, folder / "pairs.csv")
    write_exclusions(overlap.excluded, folder / "exclude.txt")
    page = _page(overlap, training, tests, folder / "pairs.html")
    return DedupResult(
        train=train,
        num_train=overlap.num_train,
        num_test=overlap.num_test,
        num_pairs=len(overlap.pairs),
        by_method=overlap.by_method,
        num_excluded=len(overlap.excluded),
        num_unreadable=overlap.num_unreadable,
        wrote=tuple(path for path in (page, folder / "pairs.csv", folder / "exclude.txt") if path),
    )


def _names(addresses: Sequence[str]) -> dict[str, str]:
    """Give each test set the last part of its address as its name, or the whole where that is not enough."""
    from vitrine.errors import ConfigError

    if not addresses:
        raise ConfigError("no test set was given; name at least one with --against")
    short = [Path(address).name or address for address in addresses]
    is_clear = len(set(short)) == len(short) and "train" not in short
    return dict(zip(short if is_clear else addresses, addresses, strict=True))


def _open(address: str, split: str) -> "Source":
    """Open a set for comparing: without labels where it is a folder of loose images, empty classes allowed."""
    from vitrine.data.sources.opening import is_loose, open_source

    has_labels = not is_loose(address)
    return open_source(address, split=split, val_fraction=0, allow_empty_class=True, is_labelled=has_labels)


def _features(
    model: str, sources: "dict[str, Source]", *, device: str, workers: int, cache: bool
) -> "dict[str, Features]":
    """Work out the features of every set, (N, D) each; rows of images that cannot be read are 0."""
    import numpy as np

    from vitrine.checkpoints import load
    from vitrine.evaluation.features import extract_features
    from vitrine.runtime.devices import choose_device
    from vitrine.runtime.threads import available_cores

    loaded = load(model)
    place = choose_device(device)
    loaded.model.to(place)
    features = {}
    for name, source in sources.items():
        found = extract_features(
            loaded.model,
            source,
            preprocess=loaded.preprocess,
            cache=cache,
            num_workers=workers or available_cores(),
            device=place,
            what=f"Extracting features of {name}",
        )
        rows = np.zeros((len(source), found.rows.shape[1]), dtype=np.float32)
        readable = np.setdiff1d(np.arange(len(source)), list(found.failures))
        rows[readable] = found.rows.numpy()
        features[name] = rows
    return features


def _page(overlap: object, train: "Source", tests: "dict[str, Source]", path: Path) -> Path:
    from vitrine.data.auditing.overlap import Overlap
    from vitrine.reports.data_pages import render_overlap
    from vitrine.reports.pages import write_page

    assert isinstance(overlap, Overlap)
    return write_page(path, render_overlap(overlap, train, tests))
