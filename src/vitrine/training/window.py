"""Sums between two logged steps."""

import time

import torch

from vitrine.training.processes import Processes, mean_over


class Window:
    """Sums since the last logged step, on the device until they are fetched."""

    def __init__(self, device: torch.device, *, sums: dict[str, float]) -> None:
        self.device = device
        self.overall_images, self.overall_began = 0, time.monotonic()
        self.clear()
        for name, value in sums.items():
            if name == "images":
                self.images = int(value)
            elif name == "steps":
                self.steps = int(value)
            else:
                self.sums[name] = torch.tensor(value, device=device)

    def clear(self) -> None:
        """Begin anew."""
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
        for name, value in {"loss": loss, "gradient_norm": norm, **stats}.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
        self.bad.append(bad)
        self.images += images
        self.fresh_images += images
        self.overall_images += images
        self.steps += 1

    def fetch(self, processes: Processes) -> dict[str, float]:
        """Return means over the window and all processes, in one exchange with the device."""
        names = list(self.sums)
        values = torch.stack([*(self.sums[name].double() for name in names), self.bad[-1].double()])
        values = mean_over(values.float() if values.device.type == "mps" else values, processes)
        *totals, bad = values.tolist()
        means = {
            name: total / (self.steps if name == "gradient_norm" else self.images)
            for name, total in zip(names, totals, strict=True)
        }
        seconds = max(time.monotonic() - self.began, 1e-9)
        means["images_per_second"] = round(self.fresh_images * processes.world_size / seconds, 2)
        means["bad"] = bad
        return means

    def first_bad_step(self, step: int) -> int:
        """Return the number (from 0) of the first step of the window that was not finite."""
        flags = torch.stack(self.bad).tolist()
        return step - len(flags) + flags.index(1.0)

    def as_numbers(self) -> dict[str, float]:
        """Return the sums for a checkpoint."""
        if not self.steps:
            return {}
        return {"images": self.images, "steps": self.steps, **{n: float(v) for n, v in self.sums.items()}}

    @property
    def overall_rate(self) -> float:
        """Images a second over the whole call, evaluation included."""
        return self.overall_images / max(time.monotonic() - self.overall_began, 1e-9)
