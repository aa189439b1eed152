"""What a run says of itself, one JSON record a line; TensorBoard and W&B by choice."""

import contextlib
import importlib.util
import json
import secrets
from pathlib import Path
from typing import Any, Protocol

from vitrine.errors import CheckpointError, MissingExtraError
from vitrine.runtime.files import write_atomically
from vitrine.runtime.run_folder import RunFolder


class Sink(Protocol):
    """Takes one record at a time."""

    def write(self, record: dict[str, Any]) -> None:
        """Take a record."""

    def close(self) -> None:
        """Take no more."""


class MetricsFile:
    """`metrics.jsonl`: every record is on disk before training goes on."""

    def __init__(self, run: RunFolder, *, done_steps: int = 0) -> None:
        self._file = run.open_metrics(done_steps=done_steps)

    def write(self, record: dict[str, Any]) -> None:
        """Append one line."""
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise CheckpointError(
                f"{self._file.name} cannot be written: {error.strerror or error}; the last good checkpoint is kept; "
                f"make room, then go on with: vitrine resume {Path(self._file.name).parent}"
            ) from error

    def close(self) -> None:
        """Close the file; what could not be written was said."""
        with contextlib.suppress(OSError):
            self._file.close()


def require_sinks(*, tensorboard: bool, wandb: str | None) -> None:
    """Refuse what is asked for and not installed, before anything is written."""
    for name, is_wanted in (("tensorboard", tensorboard), ("wandb", wandb is not None)):
        if is_wanted and importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, extra=name, purpose=f"--{name}")


class TensorBoard:
    """Scalars for TensorBoard, in the run folder; those after `done_steps` are taken back, as in metrics.jsonl."""

    def __init__(self, folder: Path, *, done_steps: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("tensorboard", extra="tensorboard", purpose="--tensorboard") from None
        self._writer = SummaryWriter(str(folder), purge_step=done_steps + 1)

    def write(self, record: dict[str, Any]) -> None:
        """Write every number of the record."""
        for name, value in record.items():
            if name != "step" and isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WeightsAndBiases:
    """Records for W&B; only ever when asked for. A run that goes on is the same run there."""

    def __init__(self, project: str, *, config: dict[str, Any], folder: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtraError("wandb", extra="wandb", purpose="--wandb") from None
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
        """End the run there."""
        self._run.finish()
