"""Metrics of a run: sums between two logged steps, and the sinks of their means.

metrics.jsonl and, if asked for, TensorBoard and Weights & Biases.
"""

import contextlib
import importlib.util
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from vitrine.errors import CheckpointError, MissingExtraError, TryVerb
from vitrine.runtime.files import write_atomically
from vitrine.runtime.processes import Processes, mean_over
from vitrine.runtime.run_folder import RunFolder

# The only sum that is not over images: it is the same in every process.
NORM = "gradient_norm"


class RunningSums:
    """Sums since the last logged step, on the device until they are fetched."""

    def __init__(self, processes: Processes, *, sums: dict[str, float]) -> None:
        """Continue with `sums` over all processes, as from `as_numbers`; each process takes an equal share."""
        self.processes = processes
        self.overall_images, self.overall_began = 0, time.monotonic()
        self.clear()
        world_size = processes.world_size
        for name, value in sums.items():
            if name == "images":
                self.images = int(value) // world_size
            elif name == "steps":
                self.steps = int(value)
            else:
                share = value if name == NORM else value / world_size
                self.sums[name] = torch.tensor(share, device=processes.device)

    def clear(self) -> None:
        """Start again from zero."""
        self.sums: dict[str, torch.Tensor] = {}
        self.bad: list[torch.Tensor] = []
        self.images = self.steps = 0
        self.began = time.monotonic()
        self.fresh_images = 0

    def add(
        self,
        loss: torch.Tensor,
        stats: dict[str, torch.Tensor],
        norm: torch.Tensor,
        bad: torch.Tensor,
        *,
        images: int,
    ) -> None:
        """Add one step's sums."""
        for name, value in {"loss": loss, NORM: norm, **stats}.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
        self.bad.append(bad.clone())  # a replayed step writes its flag to the same place again
        self.images += images
        self.fresh_images += images
        self.overall_images += images
        self.steps += 1

    def exclude_seconds(self, seconds: float) -> None:
        """Exclude time that was not spent on steps from the speed."""
        self.began += seconds

    def fetch(self) -> dict[str, float]:
        """Return means over all processes, in one exchange with the device."""
        *totals, bad = self._mean_over_processes(self.bad[-1])
        means = {
            name: total / (self.steps if name == NORM else self.images)
            for name, total in zip(self.sums, totals, strict=True)
        }
        seconds = max(time.monotonic() - self.began, 1e-9)
        means["images_per_second"] = round(self.fresh_images * self.processes.world_size / seconds, 2)
        means["bad"] = bad
        return means

    def _mean_over_processes(self, *others: torch.Tensor) -> list[float]:
        values = torch.stack([value.double() for value in (*self.sums.values(), *others)])
        if self.processes.world_size > 1:
            values = mean_over(values, self.processes)
        means: list[float] = values.tolist()
        return means

    @property
    def is_bad(self) -> bool:
        """Whether a step had NaN or infinity; waits for the device."""
        return bool(self.bad and self.bad[-1].item())

    def first_bad_step(self, step: int) -> int:
        """Return the number (from 0) of the first step that had NaN or infinity."""
        flags = torch.stack(self.bad).tolist()
        return step - len(flags) + flags.index(1.0)

    def as_numbers(self) -> dict[str, float]:
        """Return the sums over all processes for a checkpoint; all of them must ask."""
        if not self.steps:
            return {}
        world_size = self.processes.world_size
        totals = {
            name: mean if name == NORM else mean * world_size
            for name, mean in zip(self.sums, self._mean_over_processes(), strict=True)
        }
        return {"images": self.images * world_size, "steps": self.steps, **totals}

    @property
    def overall_rate(self) -> float:
        """Images per second over the whole call, evaluation included."""
        return (
            self.overall_images * self.processes.world_size / max(time.monotonic() - self.overall_began, 1e-9)
        )


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
        """Close the file; a failure to write has been reported already."""
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
    """Records for Weights & Biases; a resumed run continues the same run there."""

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
        """Finish the run at Weights & Biases."""
        self._run.finish()


def live_line(record: Mapping[str, float], *, spike_step: int | None = None) -> str:
    """Write the last record for the live line, with the step at which a current spike began."""
    shown = [f"loss {record['loss']:.4f}"]
    if spike_step is not None:
        shown = [f"{shown[0]} (spike since step {spike_step:,})"]
    if "accuracy" in record:
        shown.append(f"accuracy {100 * record['accuracy']:.1f} %")
    shown.append(f"lr {record['lr']:.2e}")
    shown.append(f"{record['images_per_second']:,.0f} images/s")
    shown.append(f"data {record['waiting_for_data']:.0%}")
    if "memory_gib" in record:
        shown.append(f"{record['memory_gib']:.1f} GiB")
    return ", ".join(shown)


def evaluation_in_words(scores: Mapping[str, float]) -> str:
    """Write the scores of an evaluation for people."""
    return ", ".join(
        f"{name.replace('_', ' ').replace('iou', 'IoU')} {100 * value:.1f} %"
        if name.endswith(("accuracy", "iou"))
        else f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in scores.items()
        if name != "collapsed"
    )
