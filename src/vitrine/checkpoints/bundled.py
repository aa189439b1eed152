"""The bundled models: `box:ti` comes with the package, others are downloaded from a release file on first use.

`box` alone stands for the default: once a small model is released, that one on a GPU; otherwise the tiny one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from vitrine.errors import CheckpointError, DownloadError
from vitrine.runtime.cache import cache_folder
from vitrine.runtime.devices import names_gpu
from vitrine.runtime.download import Limits, download

BOX = "box"
"""The default model; a folder of that name is written ./box."""
TINY, SMALL = "box:ti", "box:s"
# 44 MB at 0.5 Mbit/s take 12 minutes.
MOST_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True)
class Release:
    """A safetensors file with its own record, published beside a release of the package."""

    url: str
    sha256: str
    num_bytes: int

    def __post_init__(self) -> None:
        assert len(self.sha256) == 64 and self.num_bytes > 0  # hexadecimal digits of a SHA-256


@dataclass(frozen=True, kw_only=True)
class BoxModel:
    """One of the models; without a release it exists only if the package includes it."""

    variant: str
    release: Release | None = None


BOX_MODELS: Mapping[str, BoxModel] = MappingProxyType(
    {TINY: BoxModel(variant="ViT-Ti/16"), SMALL: BoxModel(variant="ViT-S/16")}
)
"""`weights/ship.py --release` prints the entry of a release file."""


def names_box(model: str) -> bool:
    """Whether a name is `box` or begins with `box:`."""
    return model == BOX or model.startswith(f"{BOX}:")


def box_on(model: str, *, device: str) -> str:
    """Replace `box` by the name of the default model on this kind of device; return other names unchanged."""
    if model != BOX:
        return model
    return SMALL if BOX_MODELS[SMALL].release is not None and names_gpu(device) else TINY


def box_model(name: str) -> BoxModel:
    """Return the model of a name that begins with `box:`."""
    known = BOX_MODELS.get(name)
    if known is None:
        raise CheckpointError(
            f"there is no bundled model {name}; use {' or '.join(BOX_MODELS)}", suggestions=list(BOX_MODELS)
        )
    return known


def released_file(name: str) -> Path:
    """Return the release file of a model that is not in the package, from the cache or the network."""
    model = box_model(name)
    if model.release is None:
        if name == TINY:
            raise CheckpointError(
                "this copy of Vitrine was installed without the bundled model; install the whole package, or name "
                "another model"
            )
        raise CheckpointError(
            f"no weights of {name} ({model.variant}) are released yet; use {TINY}, which comes with the package",
            suggestions=[TINY],
        )
    release = model.release
    file = Path(urlsplit(release.url).path).name
    try:
        return download(
            release.url,
            # The checksum in the name: another version of the package does not take this file for its own.
            cache_folder() / "box" / f"{release.sha256[:16]}-{file}",
            size=release.num_bytes,
            sha256=release.sha256,
            limits=Limits(max_bytes=release.num_bytes, max_seconds=MOST_SECONDS),
        )
    except DownloadError as error:
        other = "another model" if name == TINY else f"{TINY}, which comes with the package"
        raise CheckpointError(
            f"{name} is downloaded on first use: {error.problem}; or use {other}",
            advice=error.advice,
            suggestions=[] if name == TINY else [TINY],
        ) from None
