"""A training run that may not have finished: its name, its records as they are written, its newest weights."""

import math
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitrine.checkpoints import Loaded, Record
from vitrine.checkpoints.reading.safetensors_file import SafetensorsFile
from vitrine.checkpoints.record import config_from_json
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError, VitrineError
from vitrine.models import build
from vitrine.runtime.files import parse_json
from vitrine.runtime.run_folder import RunFolder
from vitrine.runtime.run_record import RunRecord

CHUNK_BYTES = 2**18
# A folder that was named by its date: 2026-11-18-031500-finetune.
DATED = re.compile(r"(\d{4}-\d{2}-\d{2})-(\d{2})(\d{2})\d{2}-")


class LiveRun:
    """The records of one run folder, read in pieces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = RunFolder(folder)
        self.name = run_name(folder)

    @property
    def is_finished(self) -> bool:
        """Whether the run has saved its model."""
        return self.run.has_model

    def silent_seconds(self) -> float | None:
        """Return the seconds since the last record; None if there is none."""
        try:
            return max(time.time() - self.run.metrics_file.stat().st_mtime, 0.0)
        except FileNotFoundError:
            return None

    def weights_stamp(self) -> tuple[tuple[str, int, int], ...]:
        """Return the files of weights with size and time; it changes when new weights are written."""
        stamp = []
        for path in (self.run.model / "config.json", *states_of(self.run)):
            with suppress(OSError):
                status = path.stat()
                stamp.append((path.name, status.st_size, status.st_mtime_ns))
        return tuple(stamp)

    def read(self, after: int) -> tuple[list[dict[str, Any]], int]:
        """Return the complete records after byte `after`, and the byte to continue from.

        A resumed run may have truncated the file: then it is read from its start.
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


def run_name(folder: Path) -> str:
    """Return the folder's name; for a dated folder its data set and date, such as `photos, 2026-11-18 03:15`."""
    name = folder.resolve().name
    date = DATED.match(name)
    if date is None:
        return name
    try:
        data = RunFolder(folder).read_record().data
    except VitrineError:
        return name
    return f"{Path(data).name or data}, {date[1]} {date[2]}:{date[3]}"


def states_of(run: RunFolder) -> tuple[Path, Path]:
    """Return the checkpoints of a run, the best one first, as it is the one that the run will save."""
    return run.best_checkpoint, run.last_checkpoint


def parsed(line: bytes) -> dict[str, Any] | None:
    """Parse the plain values of one record; NaN and infinity, which JSON lacks, become None."""
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


def weights_prefix(record: RunRecord, *, names: Iterable[str], after: str) -> str:
    """Return where the model's weights are in the trained module; runs of version 0.1 do not record it."""
    if record.weights_prefix is not None:
        return record.weights_prefix
    known = tuple(names)
    candidates = ("teacher.vit.", "vit.")
    return next((one for one in candidates if any(name.startswith(after + one) for name in known)), "")


def load_unfinished(folder: Path) -> Loaded | None:
    """Load the newest weights of a run that has not saved its model yet; None if it has none."""
    run = RunFolder(folder)
    state = next((path for path in states_of(run) if path.exists()), None)
    if state is None:
        return None
    record, classes = run.read_record(), run.read_classes()
    try:
        config = config_from_json(dict(record.model))
        preprocess = Preprocess.from_json(dict(record.preprocess))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read the records of the run {folder}: {error}") from None
    file = SafetensorsFile(state)
    # The run will save the averages; without labels the model is the part `vit` of the trained module.
    prefix = "averages." if any(name.startswith("averages.") for name in file.index) else "model."
    prefix += weights_prefix(record, names=file.index, after=prefix)
    model = build(config)
    try:
        model.load_state_dict(
            {name.removeprefix(prefix): file.read(name) for name in file.index if name.startswith(prefix)}
        )
    except RuntimeError as error:
        raise CheckpointError(
            f"{state} does not fit the model of its run: {str(error).splitlines()[0]}"
        ) from None
    names = tuple(classes) if len(classes) == config.num_classes else None
    described = Record(config=config, preprocess=preprocess, classes=names)
    note = f"{folder} has not finished: these are its newest weights, from {state.name}"
    return Loaded(model=model.eval(), preprocess=preprocess, classes=names, record=described, notes=(note,))
