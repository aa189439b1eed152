"""Find the model among the words of a command: without MODEL, the bundled one is used."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrine.checkpoints.bundled import BOX, box_on
from vitrine.checkpoints.locating import find, names_weights
from vitrine.checkpoints.opening import Opened, open_weights
from vitrine.data.decoding.annotation import DataTask
from vitrine.data.sources.folder_walk import list_images
from vitrine.data.sources.in_memory import PictureList
from vitrine.data.sources.picture_paths import names_pictures, open_pictures
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError, TryVerb
from vitrine.models.dense.config import DenseConfig
from vitrine.models.packed import packed_attention
from vitrine.runtime.find_run import resolve_latest
from vitrine.runtime.output_folder import is_inside
from vitrine.runtime.places import Place
from vitrine.serving.output_files import STANDARD_OUTPUT
from vitrine.serving.predictor import Predictor
from vitrine.spelling import printable


@dataclass(frozen=True, kw_only=True)
class PicturesPlan:
    """The plan of a verb that reads pictures."""

    model: str
    size: tuple[int, int]
    """Height and width in pixels."""
    max_patches: int | None
    """The maximum number of patches per image, for models that keep the aspect ratio; None for others."""
    packed_attention: str | None
    """How attention inside images of any shape is computed; None for images of one size."""
    device: str
    num_pictures: int


def plan_of(predictor: Predictor, source: Source, model: str) -> PicturesPlan:
    """Describe what a verb is about to do with pictures."""
    preprocess = predictor.preprocess
    return PicturesPlan(
        model=model, size=preprocess.size, max_patches=preprocess.max_patches, device=str(predictor.device),
        packed_attention=packed_attention(preprocess.max_patches, predictor.model.config, predictor.device),
        num_pictures=len(source),
    )  # fmt: skip


def predicted_task(model: str) -> DataTask:
    """Return the kind of a model's answers: classes of pictures, masks or boxes; only its config is read."""
    config = open_weights(model).record.config
    return config.answers if isinstance(config, DenseConfig) else "classes"


def named_model(model: str, *, device: str) -> str:
    """Return the name under which a verb uses a model and records it: the run behind `latest`, one of the bundled."""
    return box_on(resolve_latest(model), device=device)


def trained_weights(model: str) -> Opened | None:
    """Open the weights of a model, of which nothing is read yet; None for a variant, which has none."""
    return None if isinstance(find(model), str) else open_weights(model)


def own_max_patches(weights: Opened | None) -> int | None:
    """Return the number of patches that a trained model keeps the aspect ratio with; None if it takes one size."""
    return None if weights is None else weights.record.preprocess.max_patches


def model_and_data(verb: str, model: str | None, data: str | None, *, device: str) -> tuple[str, str]:
    """Return model and data; a single word is the data, and the model is then the bundled one for the device."""
    if data is not None:
        _require_model_first(verb, model, data)
        return named_model(model or BOX, device=device), data
    if model is None:
        raise ConfigError(
            "no data given",
            advice=[TryVerb(verb, ("DATA",)), TryVerb(verb, ("MODEL", "DATA"), "with a model")],
        )
    if names_weights(model):
        raise ConfigError(
            f"{model} is a model, and no data is given", advice=[TryVerb(verb, (model, "DATA"))]
        )
    return named_model(BOX, device=device), model


def _require_model_first(verb: str, model: str | None, data: str) -> None:
    """Refuse a model after a folder without weights; data may contain files named like weights (CIFAR's .bin)."""
    if model is not None and Path(model).is_dir() and not names_weights(model) and names_weights(data):
        raise ConfigError(
            f"{model} holds no weights but {data} does; the model comes first",
            advice=[TryVerb(verb, (data, model))],
        )


def model_and_pictures(words: Sequence[str], *, device: str) -> tuple[str, list[str]]:
    """Return model and pictures; if the first word names pictures, the model is the bundled one for the device.

    A folder means pictures unless it contains weights; a word that names neither is taken for a model. A model after
    pictures is refused, because it would be ignored and the bundled one used instead.
    """
    if not words:
        return named_model(BOX, device=device), []
    first, *others = words
    if names_weights(first) or not (names_pictures(first) or Path(first).is_dir()):
        return named_model(first, device=device), others
    for word in others:
        if names_weights(word) and not (Path(word).is_dir() and any(list_images(Path(word)))):
            raise ConfigError(f"{word} is a model; models come before pictures: {word} {first}")
    return named_model(BOX, device=device), list(words)


def opened_pictures(
    verb: str, model: str | None, pictures: Iterable[Any], *, out: Place | None, device: str
) -> tuple[str, Source]:
    """Return the model and the pictures that a verb works on; refuse an empty list, and an `out` among them."""
    if isinstance(pictures, Iterator):
        pictures = tuple(pictures)
    if not isinstance(pictures, tuple) or any(not isinstance(one, str) for one in pictures):
        return named_model(model or BOX, device=device), PictureList(pictures)
    name, places = model_and_pictures([*([] if model is None else [model]), *pictures], device=device)
    if model is None and not places:
        raise ConfigError(
            "no pictures given: name files, folders or patterns such as 'inbox/*.jpg'",
            advice=[TryVerb(verb, ("photo.jpg",))],
        )
    if not places and names_weights(name):
        raise ConfigError(
            f"{name} is a model, and no pictures are given", advice=[TryVerb(verb, (name, "photo.jpg"))]
        )
    if not places:  # neither a model nor a picture: report it as a missing picture
        name, places = named_model(BOX, device=device), [name]
    source, folders = open_pictures(places)
    if source is None:
        raise DataError(f"{printable(' '.join(places))} holds no pictures")
    for folder in folders:
        if isinstance(out, Path) and out != STANDARD_OUTPUT and is_inside(out, folder):
            raise ConfigError(f"{out} is inside the folder of pictures {folder}, which is never written to")
    return name, source
