"""The cost of a study before it starts: operations by arithmetic, seconds by a stated rule.

Operations are counted as in Table 6 (`vitrine.models.cost`), including the final evaluation. A run takes as long as
its operations at a share of the device's matmul rate (half for compiled models, as in `vitrine plan`), or as its
kernel launches, whichever takes longer; parallel runs share the device and launch independently. A CUDA graph is
launched as one kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vitrine.models import build
from vitrine.models.axial_resnet_config import AxialResNetConfig
from vitrine.models.bit_config import BiTConfig
from vitrine.models.config import ModelConfig, ViTConfig
from vitrine.models.cost import TRAINING_FLOPS_PER_MAC, cost_of
from vitrine.models.stem_configs import ResNetStemConfig
from vitrine.studies.record import Run
from vitrine.training.optimizer import Layers

FORWARD_FLOPS_PER_MAC = 2
# Fraction of the matmul rate that a training step reaches: half for a large compiled model (measured, see
# docs/experiments.md); small models that are not compiled spend most of a step outside matrix products,
# ResNets with their group norms even more. The last two are assumptions.
SHARE_COMPILED, SHARE_EAGER, SHARE_RESNET = 0.5, 0.2, 0.06
# Launching one layer's kernels, forward and backward, on the host of one H200 (docs/experiments.md, CIFAR-10).
LAUNCH_SECONDS_A_LAYER = 3.5e-3
# The same for a replayed step of any depth: the batch, the replay, sums (an assumption).
LAUNCH_SECONDS_RECORDED = 2.5e-3
# Building the model, moving the data, evaluating, writing.
START_SECONDS = 2.0
# A measurement of speed: five repetitions of half a second, and the search for the largest batch.
SPEED_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The cost of one run or several; estimates add up."""

    runs: int = 0
    exaflops: float = 0.0
    device_seconds: float = 0.0
    """Time of the device."""
    host_seconds: float = 0.0
    """Time of the process; parallel runs divide it."""

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(
            runs=self.runs + other.runs,
            exaflops=self.exaflops + other.exaflops,
            device_seconds=self.device_seconds + other.device_seconds,
            host_seconds=self.host_seconds + other.host_seconds,
        )

    def seconds(self, jobs: int) -> float:
        """Return the wall-clock time with `jobs` processes on one device."""
        return max(self.device_seconds, self.host_seconds / max(jobs, 1))

    def __str__(self) -> str:
        return f"{self.runs} runs, {self.exaflops:.3g} exaFLOPs"


def estimate_run(run: Run, *, rate: float, num_test: int) -> Estimate:
    """Estimate one run on a device of `rate` operations per second (matmul)."""
    macs = cost_of(run.model).macs
    if run.work == "speed":
        return Estimate(runs=1, exaflops=0.0, device_seconds=SPEED_SECONDS, host_seconds=SPEED_SECONDS)
    training = run.recipe.training
    operations = 1e18 * exaflops_of(run, training.total_steps)
    evaluation = FORWARD_FLOPS_PER_MAC * macs * num_test
    device = (operations + evaluation) / (rate * share_of_rate(run))
    launch = LAUNCH_SECONDS_A_LAYER * num_layers(run.model)
    launching = training.total_steps * (LAUNCH_SECONDS_RECORDED if training.graphs else launch)
    return Estimate(
        runs=1,
        exaflops=(operations + evaluation) / 1e18,
        device_seconds=device,
        host_seconds=max(device, launching) + START_SECONDS,
    )


def estimate(runs: Sequence[Run], *, rate: float, num_test: int) -> Estimate:
    """Add up the estimates of runs."""
    return sum((estimate_run(run, rate=rate, num_test=num_test) for run in runs), start=Estimate())


def share_of_rate(run: Run) -> float:
    """Return the assumed share of the matmul rate."""
    if run.recipe.training.compile is not False:
        return SHARE_COMPILED
    return SHARE_RESNET if isinstance(run.model, BiTConfig | AxialResNetConfig) else SHARE_EAGER


def num_layers(config: ModelConfig) -> int:
    """Count blocks, or a ResNet's units, and one for everything else."""
    if isinstance(config, BiTConfig):
        return sum(config.units) + 1
    if not isinstance(config, ViTConfig):
        with torch.device("meta"):
            return Layers.of(build(config)).depth + 1
    return config.depth + 1 + (sum(config.stem.units) if isinstance(config.stem, ResNetStemConfig) else 0)


def exaflops_of(run: Run, steps: int) -> float:
    """Return the exaFLOPs of the steps that a run took, as Table 6 counts them."""
    macs = cost_of(run.model).macs * views_of(run)
    return TRAINING_FLOPS_PER_MAC * macs * run.recipe.training.batch_size * steps / 1e18


def views_of(run: Run) -> float:
    """Return the cost of a step in whole images, forward and backward, per image of its batch."""
    objective = run.recipe.objective
    macs = cost_of(run.model).macs
    forward = objective.forward_macs(macs, teacher_macs=0, visits=1.0) / macs
    return objective.images_per_image(run.model) + FORWARD_FLOPS_PER_MAC / TRAINING_FLOPS_PER_MAC * forward
