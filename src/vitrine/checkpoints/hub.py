"""Downloads from the Hugging Face hub with huggingface-hub's cache, resume and offline mode; our progress line."""

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from vitrine.checkpoints.reading.safetensors_file import read_weight_map
from vitrine.checkpoints.tensors import TRUST_FILE, WEIGHT_FILES
from vitrine.errors import CheckpointError, MissingExtraError
from vitrine.runtime.cache import is_offline, why_offline
from vitrine.runtime.progress import current_listener, notice

SMALL_FILES = ("config.json", "preprocessor_config.json", "README.md", TRUST_FILE)


def fetch(repository: str, *, revision: str | None = None, also: tuple[str, ...] = ()) -> Path:
    """Download the weights of a repository, and files beside them, into the cache; return that snapshot's folder."""
    try:
        import huggingface_hub.errors  # noqa: PLC0415 (an extra)
    except ImportError:
        raise MissingExtraError(
            "huggingface-hub", extra="hub", purpose=f"loading {repository} from the hub"
        ) from None
    errors = huggingface_hub.errors

    def get(name: str, *, is_optional: bool = False) -> Path | None:
        try:
            with refusals_in_words(errors, repository, name, revision=revision):
                path = huggingface_hub.hf_hub_download(
                    repository,
                    name,
                    revision=revision,
                    tqdm_class=listener_bar(),
                    library_name="vitrine",
                    local_files_only=is_offline(),
                )
        except errors.LocalEntryNotFoundError:
            # A lost network raises this too; huggingface-hub has searched its cache by then.
            if is_known_to_lack(huggingface_hub, repository, name, revision=revision):
                return None
            raise unreachable(repository, name) from None
        except errors.EntryNotFoundError:
            return None
        return Path(path)

    with quiet_retries(repository):
        # Offline, the small files of a snapshot lie beside its weights already; the hub cannot be asked for others.
        for name in () if is_offline() else (*SMALL_FILES, *also):
            get(name)
        for name in WEIGHT_FILES:
            weights = get(name)
            if weights is not None:
                if name.endswith(".index.json"):
                    fetch_shards(weights, get)
                return weights.parent
    raise CheckpointError(f"{repository} on the hub holds no weights: there is no {', '.join(WEIGHT_FILES)}")


def is_known_to_lack(
    huggingface_hub: ModuleType, repository: str, name: str, *, revision: str | None
) -> bool:
    """Whether the cache has recorded, before the hub became unreachable, that a file does not exist.

    Models from elsewhere have no trust file, and caches of earlier versions did not ask for it: it counts as missing.
    """
    known = huggingface_hub.try_to_load_from_cache(repository, name, revision=revision)
    return known is huggingface_hub._CACHED_NO_EXIST or (known is None and name == TRUST_FILE)


@contextmanager
def refusals_in_words(
    errors: ModuleType, repository: str, name: str, *, revision: str | None
) -> Iterator[None]:
    """Turn an exception of huggingface-hub (one of its `errors`) into one sentence, except for a missing file."""
    try:
        yield
    except errors.EntryNotFoundError:
        raise
    except errors.GatedRepoError:
        raise CheckpointError(
            f"{repository} on the hub asks for its terms to be accepted first; do so on its page, "
            "then log in with: hf auth login"
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        where = f"{repository}" + (f" at {revision}" if revision else "")
        raise CheckpointError(f"no model {where} on the hub, and no such folder here") from None
    except errors.HFValidationError:
        raise CheckpointError(f"{repository!r} is not the name of a model on the hub: owner/name") from None
    except (errors.HfHubHTTPError, OSError) as error:
        raise CheckpointError(f"could not download {repository}/{name} from the hub: {error}") from None


@contextmanager
def quiet_retries(repository: str) -> Iterator[None]:
    """Report a slow hub once; huggingface-hub would warn at every attempt."""
    say_once = functools.cache(notice)

    def tell(record: logging.LogRecord) -> bool:
        say_once(f"The hub does not answer for {repository}; trying again for half a minute")
        return False

    logger = logging.getLogger("huggingface_hub.utils._http")
    logger.addFilter(tell)
    try:
        yield
    finally:
        logger.removeFilter(tell)


def fetch_shards(index: Path, get: Any) -> None:
    """Download every shard that an index names."""
    for shard in sorted(set(read_weight_map(index).values())):
        if Path(shard).name != shard or get(shard) is None:
            raise CheckpointError(f"{index} names the shard {shard!r}, which is not in the repository")


def unreachable(repository: str, name: str) -> CheckpointError:
    """Return the error for a file that could not be downloaded: not allowed, or no network."""
    if is_offline():
        reason, advice = why_offline()
        return CheckpointError(
            f"{repository}/{name} is not in the cache and {reason}, or copy the model's folder here and give its "
            "path",
            advice=advice,
        )
    return CheckpointError(
        f"{repository}/{name} is neither a folder here nor in the cache, and the hub cannot be reached; check the "
        "network, or copy the model's folder here and give its path"
    )


def listener_bar() -> type[Any]:
    """Return a progress bar for huggingface-hub that reports to our listener instead of drawing."""
    from tqdm import tqdm  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)

    class ListenerBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            self._listener = current_listener()
            super().__init__(*args, **(options | {"disable": True}))
            if self._listener is not None:
                total = options.get("total")
                self._listener.start(str(options.get("desc") or "download"), int(total) if total else None)
                if options.get("initial"):
                    self._listener.advance(int(options["initial"]))

        def update(self, n: float | None = 1) -> bool | None:
            if self._listener is not None:
                self._listener.advance(int(n or 0))
            return None

        def close(self) -> None:
            if self._listener is not None:
                self._listener.finish()
                self._listener = None

    return ListenerBar
