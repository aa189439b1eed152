"""MODEL may be left out: then it is the model in the box, and the words that are there mean something else."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from annotated_doc import Doc

from vitrine.runtime.find_run import resolve_latest

if TYPE_CHECKING:
    from vitrine.data.sources.source import Source
    from vitrine.serving.predictor import Predictor

BOX = "box"
ModelOrBox: TypeAlias = Annotated[
    str | None,
    Doc("A run folder, a file, a hub id, a variant's name; left out, it is the model in the box."),
]
Data: TypeAlias = Annotated[
    str | None,
    Doc("A folder with one folder a class, a manifest, shards, or a built-in name."),
]

Pictures: TypeAlias = Annotated[
    list[str] | None,
    Doc(
        "Files, folders, patterns, a .csv or .jsonl with a column path, a .txt of paths, - for standard input."
    ),
]


def model_and_data(verb: str, model: str | None, data: str | Path | None) -> tuple[str, str]:
    """Return model and data; a single word is the data, and the model is then the one in the box."""
    from vitrine.checkpoints.locating import names_weights
    from vitrine.errors import ConfigError

    if data is not None:
        _require_model_first(verb, model, str(data))
        return resolve_latest(model or BOX), str(data)
    if model is None:
        raise ConfigError(f"say what data: vitrine {verb} DATA, or with a model: vitrine {verb} MODEL DATA")
    if names_weights(model):
        raise ConfigError(f"{model} is a model; say what data too: vitrine {verb} {model} DATA")
    return BOX, model


def _require_model_first(verb: str, model: str | None, data: str) -> None:
    """Refuse a folder without weights before a model; data may well hold what could be weights (CIFAR's .bin)."""
    from vitrine.checkpoints.locating import names_weights
    from vitrine.errors import ConfigError

    if model is not None and Path(model).is_dir() and not names_weights(model) and names_weights(data):
        raise ConfigError(
            f"{model} holds no weights, and {data} does; the model comes first: vitrine {verb} "
            f"{shlex.quote(data)} {shlex.quote(model)}"
        )


def model_and_pictures(words: Sequence[str | Path]) -> tuple[str, list[str]]:
    """Return model and pictures; where the first word means pictures, the model is the one in the box.

    A folder means pictures unless weights lie in it; a word that means neither is taken for a model. A model after
    pictures is refused: it would be passed over, and the box asked in its place.
    """
    from vitrine.checkpoints.locating import names_weights
    from vitrine.data.sources.file_list import list_images
    from vitrine.data.sources.picture_paths import names_pictures
    from vitrine.errors import ConfigError

    texts = [str(word) for word in words]
    if not texts:
        return BOX, []
    first = texts[0]
    if names_weights(first) or not (names_pictures(first) or Path(first).is_dir()):
        return resolve_latest(first), texts[1:]
    for word in texts[1:]:
        if names_weights(word) and not (Path(word).is_dir() and any(list_images(Path(word)))):
            raise ConfigError(f"{word} is a model; models come before pictures: {word} {first}")
    return BOX, texts


def opened_pictures(
    verb: str, model: str | None, pictures: Sequence[str] | None, *, out: Path | None
) -> "tuple[str, Source]":
    """Return the model and the pictures that a verb is to work on; refuse none, and an `out` among them."""
    from vitrine.checkpoints.locating import names_weights
    from vitrine.data.sources.picture_paths import open_pictures
    from vitrine.errors import ConfigError, DataError
    from vitrine.runtime.output_folder import is_inside
    from vitrine.spelling import printable

    if isinstance(pictures, str | Path):  # in Python one place is easily given without its list
        pictures = [str(pictures)]
    name, places = model_and_pictures([*([] if model is None else [model]), *(pictures or ())])
    if model is None and not places:
        raise ConfigError(f"say what pictures: vitrine {verb} photo.jpg, or a folder, or 'inbox/*.jpg'")
    if not places and names_weights(name):
        raise ConfigError(f"{name} is a model; say what pictures too: vitrine {verb} {name} photo.jpg")
    if not places:  # neither a model nor a picture: it will be refused for what it was meant to be
        name, places = BOX, [name]
    source, folders = open_pictures(places)
    if source is None:
        raise DataError(f"{printable(' '.join(places))} holds no pictures")
    for folder in folders:
        if out is not None and is_inside(out, folder):
            raise ConfigError(f"{out} lies among the pictures of {folder}, where nothing is ever written")
    return name, source


def plan_line(predictor: "Predictor", source: "Source", model: str) -> str:
    """Say what a verb is about to do with pictures."""
    size = "x".join(map(str, predictor.preprocess.size))
    return (
        f"Plan: {model} at {size} px on {predictor.device}, {len(source):,} picture{'s' * (len(source) != 1)}"
    )
