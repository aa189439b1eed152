"""Where the metrics of a run go: metrics.jsonl and, if asked for, TensorBoard and Weights & Biases."""

import contextlib
import importlib.util
import json
import secrets
from pathlib import Path
from typing import Any, Protocol

from vitrine.errors import CheckpointError, MissingExtraError, TryVerb
from vitrine.runtime.files import write_atomically
from vitrine.runtime.run_folder import RunFolder


class Sink(Protocol):
    """Receives one record at a time."""

    def write(self, record: dict[str, Any]) -> None:
        """Receive a record."""

    def close(self) -> None:
        """Close the sink."""


class MetricsFile:
    """`metrics.jsonl`: every record is written before training continues."""

    def __init__(self, run: RunFolder, *, done_steps: int = 0) -> None:
        self._file = run.open_metrics(done_steps=done_steps)

    def write(self, record: dict[str, Any]) -> None:
        """Append one line."""
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise CheckpointError(
                f"cannot write {self._file.name}: {error.strerror or error}; the last good checkpoint is kept; free "
                "some space",
                advice=[TryVerb("resume", (str(Path(self._file.name).parent),), "to continue afterwards")],
            ) from error

    def close(self) -> None:
        """Close the file; a failure to write was reported before."""
        with contextlib.suppress(OSError):
            self._file.close()


def require_sinks(*, tensorboard: bool, wandb: str | None) -> None:
    """Refuse a sink whose package is not installed, before anything is written."""
    for name, is_wanted in (("tensorboard", tensorboard), ("wandb", wandb is not None)):
        if is_wanted and importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, extra=name, purpose=name)


class TensorBoard:
    """Scalars for TensorBoard, in the run folder; those after `done_steps` are removed, as in metrics.jsonl."""

    def __init__(self, folder: Path, *, done_steps: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (an extra)
        except ImportError:
            raise MissingExtraError("tensorboard", extra="tensorboard", purpose="tensorboard") from None
        self._writer = SummaryWriter(str(folder), purge_step=done_steps + 1)

    def write(self, record: dict[str, Any]) -> None:
        """Write every number of the record."""
        for name, value in record.items():
            if name != "step" and isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Write the rest and close."""
        self._writer.close()


class WeightsAndBiases:
    """Records for Weights & Biases; a resumed run is the same run there."""

    def __init__(self, project: str, *, config: dict[str, Any], folder: Path) -> None:
        try:
            import wandb  # noqa: PLC0415 (an extra)
        except ImportError:
            raise MissingExtraError("wandb", extra="wandb", purpose="wandb") from None
        kept = folder / "wandb" / "run-id.txt"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with write_atomically(kept, mode="w") as file:
                file.write(secrets.token_hex(4))
        self._run = wandb.init(
            project=project, config=config, dir=str(folder), id=kept.read_text(), resume="allow"
        )

    def write(self, record: dict[str, Any]) -> None:
        """Send one record."""
        self._run.log({name: value for name, value in record.items() if name != "step"}, step=record["step"])

    def close(self) -> None:
        """Finish the run there."""
        self._run.finish()
