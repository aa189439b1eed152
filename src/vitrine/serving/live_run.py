"""A training run that may still be going on: its records as they come, and its newest weights."""

import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitrine.checkpoints import Loaded, Record
from vitrine.checkpoints.reading.safetensors_file import SafetensorsFile
from vitrine.checkpoints.record import config_from_json
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import build
from vitrine.runtime.files import parse_json
from vitrine.runtime.run_folder import RunFolder

CHUNK_BYTES = 2**18


class LiveRun:
    """The records of one run folder, read a piece at a time from where the reader stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = RunFolder(folder)
        self.name = folder.resolve().name

    @property
    def is_finished(self) -> bool:
        """Whether the run has saved its model."""
        return self.run.has_model

    def silent_seconds(self) -> float | None:
        """Return how long ago the last record was written; None where there is none."""
        try:
            return max(time.time() - self.run.metrics_file.stat().st_mtime, 0.0)
        except FileNotFoundError:
            return None

    def weights_stamp(self) -> tuple[tuple[str, int, int], ...]:
        """Return which files of weights there are, with size and time: it changes when there is something new."""
        found = []
        for path in (self.run.model / "config.json", *states_of(self.run)):
            with suppress(OSError):
                status = path.stat()
                found.append((path.name, status.st_size, status.st_mtime_ns))
        return tuple(found)

    def read(self, after: int) -> tuple[list[dict[str, Any]], int]:
        """Return the whole records after byte `after`, and the byte to go on from.

        A resumed run may have cut the file short: then it is read from its start.
        """
        path = self.run.metrics_file
        try:
            size = path.stat().st_size
            if after > size:
                after = 0
            with path.open("rb") as file:
                file.seek(after)
                data = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return [], 0
        whole = data[: data.rfind(b"\n") + 1]
        return [record for line in whole.splitlines() if (record := parsed(line))], after + len(whole)


def states_of(run: RunFolder) -> tuple[Path, Path]:
    """Return the files of weights of a run, best first: what `evaluate` will see in the end."""
    return run.best_checkpoint, run.last_checkpoint


def parsed(line: bytes) -> dict[str, Any] | None:
    """Read one record's plain values; numbers that JSON does not know become None."""
    try:
        record = parse_json(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    return {
        str(name): None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
        if isinstance(value, int | float | str)
    }


def load_unfinished(folder: Path) -> Loaded | None:
    """Load the newest weights of a run that has not saved its model yet; None where it has none so far."""
    run = RunFolder(folder)
    state = next((path for path in states_of(run) if path.exists()), None)
    if state is None:
        return None
    try:
        record, classes = run.read_record(), run.read_classes()
        config = config_from_json(dict(record.model))
        preprocess = Preprocess.from_json(dict(record.preprocess))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder} is a run whose records cannot be read: {error}") from None
    file = SafetensorsFile(state)
    # Averages are what the run will save; without labels the trained module holds the model as `vit`.
    prefix = "averages." if any(name.startswith("averages.") for name in file.index) else "model."
    prefix += "" if record.objective == "labels" else "vit."
    model = build(config)
    try:
        model.load_state_dict(
            {name.removeprefix(prefix): file.read(name) for name in file.index if name.startswith(prefix)}
        )
    except RuntimeError as error:
        raise CheckpointError(f"{state} does not fit its run: {str(error).splitlines()[0]}") from None
    names = tuple(classes) if len(classes) == config.num_classes else None
    described = Record(config=config, preprocess=preprocess, classes=names)
    note = f"{folder} is not finished: these are its weights in {state.name} as they were just now"
    return Loaded(model=model.eval(), preprocess=preprocess, classes=names, record=described, notes=(note,))
