"""The settings of training, in one frozen record that checks its values."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vitrine.errors import ConfigError
from vitrine.spelling import nearest

OptimizerName = Literal["adamw", "sgd", "muon", "lamb", "schedule-free"]
Decay = Literal["cosine", "linear", "steps", "constant", "wsd"]
Precision = Literal["auto", "bf16", "fp32", "fp8"]
Trains = Literal["all", "head", "biases"]
# By default, steps between two checkpoints of a long run, and the number of checkpoints of a short one.
LONG_WAY, LEAST_CHECKPOINTS = 1000, 4
# Compiling takes about a minute; it pays off in runs of this length.
STEPS_WORTH_COMPILING = 2000


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The settings of the loop. Weight decay is decoupled and multiplied by the learning rate (torch's AdamW).

    `adamw` is the paper's Adam for ViTs and ResNets alike (Table 3, appendix D.1); `sgd` its fine-tuning
    (Table 4); `muon` orthogonalises the updates of the blocks' matrices and leaves the rest to AdamW; `lamb` scales
    each tensor's update to the tensor's size (DeiT III); `schedule-free` averages weights instead of decaying the
    learning rate, so that a run can end at any step.
    """

    total_steps: int = 10_000
    batch_size: int = 512
    """Images per step, over all processes and micro-batches."""
    optimizer: OptimizerName = "adamw"
    lr: float = 1e-3
    warmup_steps: int = 0
    decay: Decay = "cosine"
    """`wsd` (warm-up, stable, decay) keeps the rate until the last `cooldown` of the run, so that a run can be made
    longer from any checkpoint before that."""
    cooldown: float = 0.2
    """For `wsd`: fraction of all steps, at the end, in which the rate falls to `end_lr`."""
    end_lr: float = 0.0
    boundaries: tuple[float, ...] = ()
    weight_decay: float = 0.0
    decays_all: bool = False
    """Whether norms, biases, tokens and positions decay too; by default only matrices and kernels do."""
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    clip_norm: float | None = 1.0
    layer_decay: float = 1.0
    """Layer-wise decay: factor on the learning rate from each block to the one before it."""
    trains: Trains = "all"
    """`head` freezes everything else: a linear probe. `biases` trains biases and the head (BitFit)."""
    frozen_blocks: int = 0
    """Number of blocks that are frozen, from the first on, with the embedding; in a ResNet the stem and stages.
    -2 freezes all but the last two."""
    freezes_patches: bool = False
    """Keep the patch projection of a ViT as it is at the start (arXiv:2104.02057, section 4.2)."""
    lora_rank: int | None = None
    """Train adapters of this rank and the head, and freeze everything else."""
    lora_alpha: float | None = None
    """Adapters are scaled by this divided by the rank; None is the rank: a factor of one."""
    matrix_lr_factor: float = 4.0
    """For `muon`: learning rate of matrices relative to that of the rest."""
    matrix_momentum: float = 0.95
    """For `muon`: momentum of matrices; a short run with a high rate may want less."""
    average_decay: float | None = None
    """Decay of Polyak averaging; the paper's is .9999."""
    evaluates_raw: bool | None = None
    """Whether the raw weights are evaluated too if weights are averaged. None does so in runs that are long enough to
    be compiled."""
    precision: Precision = "auto"
    """`auto` is bf16 on CUDA and on CPUs with bf16 instructions, fp32 elsewhere; `fp8` computes large products in
    fp8, the rest in bf16."""
    compile: bool | None = None
    """None compiles on CUDA if the run is long enough to pay off."""
    graphs: bool = False
    """Record a step as a CUDA graph and replay it: for small models, whose kernels take less time than their launch.
    Needs one process on CUDA and no activation checkpointing, which reads random states; ignored otherwise."""
    micro_batch: int | None = None
    """Images at a time on one device; None is as many as fit in memory, halved when it runs out."""
    seed: int = 0
    log_every: int = 50
    evaluate_every: int | None = None
    """Steps between two evaluations; None evaluates only at the end. Commands spread several over a run."""
    checkpoint_every: int | None = None
    """Steps between two checkpoints. None is 1000, or a quarter of a shorter run."""
    patience: int | None = None
    """Stop after this many evaluations without improvement."""

    def compiles_on(self, device: str) -> bool:
        """Whether the model is compiled on this kind of device: as set or, on CUDA, in runs that are long enough."""
        if self.compile is not None:
            return self.compile
        return device == "cuda" and self.total_steps >= STEPS_WORTH_COMPILING

    @property
    def averages(self) -> bool:
        """Whether evaluations and the saved model use averages of the weights."""
        return self.average_decay is not None or self.optimizer == "schedule-free"

    @property
    def evaluates_twice(self) -> bool:
        """Whether every evaluation is of both the averages and the raw weights."""
        is_wanted = self.evaluates_raw
        return self.averages and (
            self.total_steps >= STEPS_WORTH_COMPILING if is_wanted is None else is_wanted
        )

    @property
    def checkpoint_steps(self) -> int:
        """Steps between two checkpoints."""
        if self.checkpoint_every is not None:
            return self.checkpoint_every
        return min(LONG_WAY, max(self.total_steps // LEAST_CHECKPOINTS, 1))

    def __post_init__(self) -> None:
        for name, kind in (
            ("optimizer", OptimizerName),
            ("decay", Decay),
            ("precision", Precision),
            ("trains", Trains),
        ):
            require_choice(name, getattr(self, name), get_args(kind))
        for name in ("total_steps", "batch_size", "log_every", "checkpoint_every", "micro_batch", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise ConfigError(f"evaluate_every must be at least 1, got {self.evaluate_every}")
        for name, holds, rule in (
            ("lr", 0 < self.lr < math.inf, "above 0 and finite"),
            ("end_lr", 0 <= self.end_lr < math.inf, "at least 0 and finite"),
            ("warmup_steps", self.warmup_steps >= 0, "at least 0"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0 and finite"),
            ("betas", all(0 <= beta < 1 for beta in self.betas), "two numbers from 0 to 1, without 1"),
            ("lora_rank", self.lora_rank is None or self.lora_rank >= 1, "at least 1, or null"),
            ("lora_alpha", self.lora_alpha is None or self.lora_alpha > 0, "above 0, or null"),
            (
                "lora_rank",
                self.lora_rank is None or (self.trains == "all" and not self.frozen_blocks),
                "null where only the head, biases or some blocks are trained",
            ),
            ("layer_decay", 0 < self.layer_decay <= 1, "above 0 and at most 1"),
            ("momentum", 0 <= self.momentum < 1, "at least 0 and below 1"),
            ("matrix_momentum", 0 <= self.matrix_momentum < 1, "at least 0 and below 1"),
            ("matrix_lr_factor", 0 < self.matrix_lr_factor < math.inf, "above 0 and finite"),
            ("clip_norm", self.clip_norm is None or self.clip_norm > 0, "above 0, or null for none"),
            (
                "average_decay",
                self.average_decay is None or 0 < self.average_decay < 1,
                "between 0 and 1, or null",
            ),
            ("cooldown", 0 < self.cooldown <= 1, "above 0 and at most 1"),
        ):
            if not holds:
                raise ConfigError(f"{name} must be {rule}, got {getattr(self, name)}")
        if self.optimizer == "schedule-free":
            self._require_no_schedule()

    def _require_no_schedule(self) -> None:
        for name, holds, rule in (
            ("decay", self.decay == "constant", "constant"),
            ("average_decay", self.average_decay is None, "null"),
            ("betas", self.betas[0] > 0, "above 0 in its first number"),
        ):
            if not holds:
                raise ConfigError(
                    f"{name} must be {rule} with the optimizer schedule-free, got {getattr(self, name)}"
                )


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not one of the choices, with the nearest one."""
    if value not in choices:
        close = nearest(str(value), choices)[0]
        raise ConfigError(
            f"{name} must be one of {', '.join(choices)}, got {value!r}; nearest: {close}",
            suggestions=[close],
        )
