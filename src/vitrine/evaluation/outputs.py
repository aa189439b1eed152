"""A model's outputs for every image of a set, each exactly once, on any number of processes.

Shapes: N images, K numbers per image (logits or the representation).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrine.data.loading.loader import Loader
from vitrine.data.loading.workers import WorkerKind
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.streaming import Pace, stream
from vitrine.runtime.progress import announced

Precision = Literal["fp32", "bf16"]
Wish = Literal["auto", "fp32", "bf16"]
"""The precisions that a user may choose: `auto` is bf16 on a GPU and fp32 elsewhere."""
MOST_AT_A_TIME = 64
# Pixels per batch on a GPU that holds nothing else: at 224 px, 256 images keep an H200 busy with ViT-B/16 (2 GiB).
GPU_PIXELS = 256 * 224 * 224
# On a CPU, batches of more pixels than eight images of 224 px are not faster (docs/experiments.md), use more memory
# and report progress less often.
CPU_PIXELS = 8 * 224 * 224


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Rows (N, K) float32 in the order of the source, and why some images could not be read (their rows are 0)."""

    rows: Tensor
    failures: dict[int, str]

    @property
    def readable(self) -> NDArray[np.bool_]:
        """Which images could be read: (N,)."""
        mask = np.ones(len(self.rows), dtype=bool)
        mask[list(self.failures)] = False
        return mask


def run_model(
    model: nn.Module,
    source: Source,
    *,
    preprocess: Preprocess,
    function: Callable[[Tensor], Tensor] | None = None,
    batch_size: int | None = None,
    num_workers: int = 2,
    worker_kind: WorkerKind = "threads",
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    what: str = "Evaluating",
    is_sharded: bool = False,
    requires_finite: bool = True,
) -> Outputs:
    """Apply `function` (the model itself by default) to every image, `batch_size` at a time on each process.

    With fewer images than processes, each computes all of them. Outputs that are NaN or infinity are refused unless
    the caller handles them.
    """
    device = torch.device(device)
    batch_size = batch_size or at_a_time(device, preprocess.size)
    rank, world_size = this_rank()
    is_divided = len(source) >= world_size
    if not is_divided:
        rank, world_size = 0, 1
    apply = computed_in(
        model if function is None else function, preprocess, device=device, precision=precision
    )
    loader = Loader(
        source, preprocess, batch_size=batch_size * world_size, rank=rank, world_size=world_size,
        num_workers=num_workers, worker_kind=worker_kind, device=device, keep_going=True,
    )  # fmt: skip
    share = (rank + 1) * len(source) // world_size - rank * len(source) // world_size
    with loader, evaluating(model), announced(what, total=share) as advance:
        rows, failures = own_outputs(loader, apply, advance, is_sharded=is_sharded)
    if is_divided:
        rows, failures = gather_rows(rows, length=len(source)), gather_mappings(failures)
    if len(failures) == len(source):
        raise DataError(
            f"cannot read any image of {source.address}; the first: {next(iter(failures.values()))}"
        )
    rows[list(failures)] = 0
    if requires_finite:
        require_finite(rows, source, precision=precision)
    return Outputs(rows=rows, failures=failures)


def own_outputs(
    loader: Loader,
    apply: Callable[[Tensor], Tensor],
    advance: Callable[[int, str], None],
    *,
    is_sharded: bool,
) -> tuple[Tensor, dict[int, str]]:
    """Compute the outputs of this process's images, and why some could not be read.

    A sharded model gathers its weights in every pass, so all processes make as many passes as the one with most
    images.
    """
    parts: list[Tensor] = []
    failures: dict[int, str] = {}
    pace = Pace()
    for computed in stream(loader, lambda images: {"rows": apply(images)}, pace=pace):
        parts.append(computed.values["rows"])
        failures |= {computed.start + row: why for row, why in computed.failures.items()}
        advance(len(computed), str(pace))
    if is_sharded:
        most_images = math.ceil(len(loader.source) / loader.world_size)
        num_passes = math.ceil(most_images / (loader.batch_size // loader.world_size))
        for _ in range(num_passes - len(parts)):
            apply(torch.zeros(1, *loader.view.shape, device=loader.device))
    return torch.cat(parts), failures


def computed_in(
    function: Callable[[Tensor], Tensor],
    preprocess: Preprocess,
    *,
    device: torch.device,
    precision: Precision,
) -> Callable[[Tensor], Tensor]:
    """Return the function of raw images (B, C, H, W) that normalises them and computes without gradients."""

    def apply(images: Tensor) -> Tensor:
        # Not inference mode: tensors that a module caches in it could not be trained with afterwards.
        with torch.no_grad(), casting(device, precision):
            return function(preprocess.normalise(images))

    return apply


def at_a_time(device: torch.device, size: tuple[int, int]) -> int:
    """Choose the batch size for images of `size`."""
    if device.type != "cpu":
        return MOST_AT_A_TIME
    return max(1, min(MOST_AT_A_TIME, CPU_PIXELS // (size[0] * size[1])))


def at_a_time_alone(device: torch.device, size: tuple[int, int]) -> int:
    """Choose the batch size where the model has the device for itself, and no training state lies beside it."""
    if device.type != "cuda":
        return at_a_time(device, size)
    return max(1, GPU_PIXELS // (size[0] * size[1]))


def chosen_precision(wish: Wish, device: torch.device) -> Precision:
    """Return the number format that a user asked for, or the device's own."""
    if wish != "auto":
        return wish
    return "bf16" if device.type == "cuda" else "fp32"


def require_finite(rows: Tensor, source: Source, *, precision: Precision) -> None:
    """Refuse outputs (N, K) with NaN or infinity, naming the first image."""
    is_finite = torch.isfinite(rows).all(dim=1)
    if not is_finite.all():
        name = source.name(int(torch.nonzero(~is_finite)[0, 0]))
        hint = ", or bf16 is not precise enough: try fp32" if precision == "bf16" else ""
        raise DataError(
            f"the model's output for {name} contains NaN or infinity; its weights are damaged{hint}"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode for the block, and restore its mode."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def casting(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Compute in `precision` inside the block."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def this_rank() -> tuple[int, int]:
    """Return the rank of this process and the number of processes: (0, 1) without distribution."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gather_rows(rows: Tensor, *, length: int) -> Tensor:
    """Gather the rows (n, ...) of all processes into (length, ...), in order, on the CPU.

    Process r of W has rows r * N // W up to (r + 1) * N // W, as `Loader.evaluation_batches` divides them.
    """
    rank, world_size = this_rank()
    if world_size == 1:
        assert len(rows) == length
        return rows.cpu()
    shares = [(r + 1) * length // world_size - r * length // world_size for r in range(world_size)]
    assert len(rows) == shares[rank]
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
    # Shares differ by at most one row, and all_gather needs equal ones: pad, gather, trim.
    padded = torch.zeros((max(shares), *rows.shape[1:]), dtype=rows.dtype, device=device)
    padded[: len(rows)] = rows.to(device)
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(parts, padded)
    return torch.cat([part[:share] for part, share in zip(parts, shares, strict=True)]).cpu()


def gather_mappings(mapping: dict[int, str]) -> dict[int, str]:
    """Gather the dictionaries of all processes into one, in order of the keys."""
    _, world_size = this_rank()
    parts: list[Any] = [mapping]
    if world_size > 1:
        parts = [None] * world_size
        dist.all_gather_object(parts, mapping)
    return dict(sorted((key, value) for part in parts for key, value in part.items()))


def on_every_rank(claim: bool) -> bool:
    """Return whether a claim holds on every process, so that all take the same branch."""
    _, world_size = this_rank()
    if world_size == 1:
        return claim
    claims: list[Any] = [None] * world_size
    dist.all_gather_object(claims, claim)
    return all(claims)
