"""Sums of loss and scores between two logged steps."""

import time

import torch

from vitrine.runtime.processes import Processes, mean_over

# The one sum that is not over images: it is the same in every process.
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
        """Leave time that was not spent on steps out of the speed."""
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
        means: list[float] = mean_over(values, self.processes).tolist()
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
