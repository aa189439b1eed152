"""The representation of every image of a set, computed once and cached outside the data set.

A cache file is named by a hash of what it depends on: weights, preprocessing, data, precision. The file
repeats them, and a file that contradicts its name is refused.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrine.checkpoints.tensors import Spec
from vitrine.checkpoints.writing import write_safetensors
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import Source
from vitrine.errors import CheckpointError, DataError
from vitrine.evaluation.outputs import Outputs, Precision, on_every_rank, run_model, this_rank
from vitrine.models import Model
from vitrine.runtime.cache import cache_folder
from vitrine.runtime.progress import notice, track

# Increase it whenever the outputs of models, their inputs, or the stored fields change.
_VERSION = "3"


@dataclass(frozen=True, kw_only=True)
class Features:
    """Representations (N, D) float32 and labels (N,) of the readable images, and why others are skipped."""

    rows: Tensor
    labels: NDArray[np.int32]
    failures: dict[int, str]
    from_cache: bool


def extract_features(
    model: Model,
    source: Source,
    *,
    preprocess: Preprocess,
    cache: Path | bool = True,
    batch_size: int | None = None,
    num_workers: int = 2,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    what: str = "Extracting features",
    function: Callable[[Tensor], Tensor] | None = None,
    output: str = "representation",
) -> Features:
    """Return the representation of every image (the input of the head), from the cache if it is there.

    `cache` is a folder, True for the user's cache folder, or False for none. `function` computes something else from
    images: (B, D); `output` must then name it and everything else that it depends on.
    """
    identity: dict[str, str] = {}
    file: Path | None = None
    if cache is not False:
        folder = cache_folder() / "features" if cache is True else cache
        identity = feature_identity(model, source, preprocess=preprocess, precision=precision, output=output)
        file = folder / f"{_key(identity)}.safetensors"
        if on_every_rank(file.is_file()):
            outputs = read_features(file, identity=identity)
            return _features(outputs, source, from_cache=True)
    outputs = run_model(
        model,
        source,
        preprocess=preprocess,
        function=function or (lambda images: representation(model, images)),
        batch_size=batch_size,
        num_workers=num_workers,
        device=device,
        precision=precision,
        what=what,
    )
    if file is not None and this_rank()[0] == 0:
        _write_cache(outputs, file, identity=identity)
    return _features(outputs, source, from_cache=False)


def representation(model: Model, images: Tensor) -> Tensor:
    """Return the input of any model's head: (B, R)."""
    return model.embed(images) if isinstance(model, Model) else model.features(images)["representation"]


def logits_and_features(model: Model, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (B, K) and the input of the head (B, R) from one pass where possible."""
    if getattr(model, "distillation_head", None) is not None:  # logits are the mean of two heads
        return model(images), representation(model, images)
    assert model.head is not None
    rows = representation(model, images)
    return model.head(rows), rows


def feature_identity(
    model: Model,
    source: Source,
    *,
    preprocess: Preprocess,
    precision: Precision,
    output: str = "representation",
) -> dict[str, str]:
    """Return everything that the features depend on: hashes of weights and data, preprocessing, precision, kind."""
    return {
        "output": output,
        "model": weights_hash(model),
        "preprocess": json.dumps(preprocess.to_json(), sort_keys=True),
        "data": data_hash(source),
        "precision": precision,
        "version": _VERSION,
    }


def weights_hash(model: Model, *, includes_head: bool = False) -> str:
    """Hash config and weights; without the head by default, as the representation does not depend on it."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr(_without_head(model)).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not includes_head and name.split(".")[0] in ("head", "distillation_head"):
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def data_hash(source: Source) -> str:
    """Hash names, sizes and labels, and each file's modification time, or the content if an image is not a file."""
    digest = hashlib.blake2b(source.fingerprint().encode(), digest_size=16)
    for part in track(_contents(source), "Hashing data", total=len(source)):
        digest.update(part)
    return digest.hexdigest()


def read_features(file: Path, *, identity: dict[str, str]) -> Outputs:
    """Read a cache file; refuse one of another model, preprocessing or data than `identity`."""
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            rows = opened.get_tensor("features")
            failures = {int(index): why for index, why in json.loads(metadata["failures"]).items()}
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{file} is not a file of features ({error}); remove it") from error
    for key, words in _WORDS.items():
        if metadata.get(key) != identity[key]:
            raise DataError(
                f"{file} holds features of {words} ({_short(metadata.get(key))}, not "
                f"{_short(identity[key])}); remove it, or use another cache folder"
            )
    return Outputs(rows=rows, failures=failures)


_WORDS = {
    "output": "another kind",
    "model": "another model",
    "preprocess": "another preprocessing",
    "data": "other data",
    "precision": "another precision",
    "version": "another version of Vitrine",
}


def _write_cache(outputs: Outputs, file: Path, *, identity: dict[str, str]) -> None:
    failures = json.dumps({str(index): why for index, why in outputs.failures.items()})
    try:
        write_safetensors(
            file,
            [("features", outputs.rows)],
            specs={"features": Spec(tuple(outputs.rows.shape), outputs.rows.dtype)},
            metadata={**identity, "failures": failures},
        )
    except CheckpointError as error:
        notice(f"The features could not be cached: {error}")


def _features(outputs: Outputs, source: Source, *, from_cache: bool) -> Features:
    keep = outputs.readable
    return Features(
        rows=outputs.rows[torch.from_numpy(keep)],
        labels=source.labels[keep],
        failures=outputs.failures,
        from_cache=from_cache,
    )


def _without_head(model: Model) -> dict[str, object]:
    return {key: value for key, value in vars(model.config).items() if key not in ("num_classes", "dropout")}


def _contents(source: Source) -> Iterator[bytes]:
    for index in range(len(source)):
        path = source.path(index)
        if path is not None:
            try:
                yield str(path.stat().st_mtime_ns).encode()
            except OSError:
                yield b"missing"
            continue
        try:
            data = source.read(index).data
        except DataError:
            yield b"unreadable"
            continue
        yield hashlib.blake2b(data if isinstance(data, bytes) else np.ascontiguousarray(data).data).digest()


def _key(identity: dict[str, str]) -> str:
    return hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()


def _short(text: str | None) -> str:
    return "unknown" if text is None else text if len(text) <= 12 else f"{text[:12]}..."
