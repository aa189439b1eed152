"""Locate weights: bundled, a file, a folder, a run folder, a hub id, a URL, or a variant's name (no weights)."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vitrine.checkpoints import hub
from vitrine.checkpoints.bundled import BOX, TINY, names_box, released_file
from vitrine.checkpoints.tensors import SUFFIXES, TRUST_FILE, WEIGHT_FILES
from vitrine.data.decoding.file_kind import IMAGE_SUFFIXES
from vitrine.errors import CheckpointError, ConfigError, DownloadError, MissingCheckpointError, TryVerb
from vitrine.models import ModelConfig, configure
from vitrine.runtime.download import download_to_cache
from vitrine.runtime.find_run import LATEST, find_run, runs_in
from vitrine.runtime.remote_model import fetch_model, is_address, names_model
from vitrine.runtime.run_folder import MODEL, RunFolder
from vitrine.spelling import near_match

HUB_SCHEME = "hf-hub:"
BOX_FOLDER = Path(__file__).parent / "box"
"""The folder of the tiny model, which comes with the package unless it was built without weights."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A weights file on this machine and the folder with its config files."""

    weights: Path
    folder: Path | None


def find(source: str | Path, *, revision: str | None = None) -> Place | str:
    """Locate the weights, downloading from the hub or a URL if necessary; return a variant's name unchanged."""
    text = str(source)
    elsewhere = None if isinstance(source, Path) else by_scheme(text, revision=revision)
    if elsewhere is not None:
        return elsewhere
    path = Path(source).expanduser()
    if path.name == LATEST and not path.exists():  # never a repository of the hub
        path = find_run(path).path
    if path.is_dir():
        return in_folder(path)
    if path.exists() or path.is_symlink():
        # A file with a usual name stands for its folder; any other file stands for itself.
        return Place(weights=path, folder=path.parent if path.name in WEIGHT_FILES else None)
    if variant(text) is not None:
        return text
    is_hub_name = re.fullmatch(r"[\w][\w.-]*/[\w][\w.-]*", text) and not isinstance(source, Path)
    if is_hub_name and path.suffix not in SUFFIXES and not path.parent.is_dir():
        if re.fullmatch(r"\d+(x\d+)?", path.name):
            # A patch size at the end means a misspelt variant, not a hub id.
            configure(text)
        return from_hub(text, revision=revision)
    if not path.parent.is_dir():
        raise MissingCheckpointError(f"no such file or folder: {text}; there is no folder {path.parent}")
    close = nearest_path(path)
    hint = f"; did you mean {close}?" if close else ""
    raise MissingCheckpointError(
        f"no such file or folder: {text}{hint}", suggestions=[close] if close else []
    )


def by_scheme(text: str, *, revision: str | None) -> Place | None:
    """Locate weights by keyword: a bundled model, a URL, an address or a hub id."""
    if names_box(text):
        return in_box(text)
    if re.match(r"https?://", text):
        return Place(weights=from_url(text), folder=None)
    if is_address(text):
        return at_address(text)
    if text.startswith(HUB_SCHEME):
        return from_hub(text.removeprefix(HUB_SCHEME), revision=revision)
    return None


def at_address(text: str) -> Place:
    """Locate the copy of a run, a folder or a file of weights at an address."""
    folder, _, name = text.rpartition("/")
    path = fetch_model(folder if name in WEIGHT_FILES and names_model(folder) else text)
    return in_folder(path) if path.is_dir() else Place(weights=path, folder=None)


def names_weights(word: str) -> bool:
    """Whether a word can only mean a model: bundled, a variant, a hub id, a file or a folder with weights."""
    if is_address(word):
        suffix = PurePosixPath(word).suffix
        return suffix in SUFFIXES if suffix in {*SUFFIXES, *IMAGE_SUFFIXES} - {".tar"} else names_model(word)
    path = Path(word).expanduser()
    if path.is_dir():
        inside = (*WEIGHT_FILES, *(f"{MODEL}/{name}" for name in WEIGHT_FILES))
        return (
            RunFolder(path).is_run
            or any((path / name).exists() for name in inside)
            or any(entry.suffix in SUFFIXES and entry.name != TRUST_FILE for entry in path.iterdir())
        )
    return (
        names_box(word)
        or path.suffix in SUFFIXES
        or path.name == LATEST
        or word.startswith(HUB_SCHEME)
        or (not path.exists() and variant(word) is not None)
    )


def in_box(name: str = BOX) -> Place:
    """Locate a bundled model; `box` is the tiny one here, where the device is not known."""
    name = TINY if name == BOX else name
    bundled = BOX_FOLDER / WEIGHT_FILES[0]
    if name == TINY and bundled.exists():
        return Place(weights=bundled, folder=BOX_FOLDER)
    return Place(weights=released_file(name), folder=None)


def variant(name: str) -> ModelConfig | None:
    """Return the config of a variant's name, or None for any other name."""
    try:
        return configure(name)
    except ConfigError:
        return None


def from_url(url: str) -> Path:
    """Return the file of a URL, from the cache or the network."""
    try:
        return download_to_cache(url)
    except DownloadError as error:
        raise CheckpointError(f"{error.problem}, or pass the path of a copy", advice=error.advice) from None


def from_hub(repository: str, *, revision: str | None) -> Place:
    """Download a repository's weights, or locate them in the cache."""
    return in_folder(hub.fetch(repository, revision=revision))


def in_folder(folder: Path) -> Place:
    """Locate the weights in a folder; a run folder keeps them in `model/`."""
    try:
        present = sorted(entry.name for entry in folder.iterdir())
    except PermissionError:
        raise CheckpointError(
            f"no permission to read the folder {folder}; check its owner and mode"
        ) from None
    for name in WEIGHT_FILES:
        if name in present:
            return Place(weights=folder / name, folder=folder)
    run = RunFolder(folder)
    if run.model.is_dir():
        return in_folder(run.model)
    files = [name for name in present if Path(name).suffix in SUFFIXES and name != TRUST_FILE]
    if len(files) == 1 or "model.onnx" in files:  # an export keeps smaller copies beside it
        return Place(weights=folder / ("model.onnx" if "model.onnx" in files else files[0]), folder=folder)
    if files:
        raise CheckpointError(
            f"{folder} holds {len(files)} files of weights ({', '.join(files[:4])}); name the one to load"
        )
    if run.is_run:
        raise CheckpointError(
            f"the run {folder} has not finished, so it has no model yet",
            advice=[TryVerb("resume", (str(folder),), "to continue it")],
        )
    raise CheckpointError(
        f"{folder} holds no weights: there is no {', '.join(WEIGHT_FILES)} nor any other {', '.join(SUFFIXES)} in it"
    )


def nearest_path(path: Path) -> str | None:
    """Return the path in the same folder whose name is most like the one of `path`, if any is."""
    names = [entry.name for entry in path.parent.iterdir()]
    if runs_in(path.parent):
        names.append(LATEST)
    close = near_match(path.name, names)
    return str(path.parent / close) if close else None
