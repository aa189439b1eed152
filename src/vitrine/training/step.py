"""One optimizer step: micro-batches, backward, clip, update; the host never waits for the device.

NaN or infinity in a loss or gradient is detected on the device. The flag stays set and blocks all later updates, so
that the weights are those of the last good step when the host reads the flag.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from vitrine.errors import TryOption, is_out_of_memory
from vitrine.models.dropout import randomness_of
from vitrine.runtime.processes import Processes, anyone, largest
from vitrine.runtime.progress import notice
from vitrine.spelling import counted
from vitrine.training.stopping import NoMemoryError

# The inputs of the loss from a batch; in a step each image's key comes last and seeds dropout and stochastic depth.
Parts = tuple[Tensor, ...]
# Maps the trained module and (a slice of) the prepared batch to one loss per image and sums to log.
LossOf = Callable[[nn.Module, Parts], tuple[Tensor, dict[str, Tensor]]]


@dataclass
class StepState:
    """State between steps: the micro-batch that fits, and whether NaN or infinity has occurred."""

    micro_batch: int
    bad: Tensor
    """0 until a loss or gradient is NaN or infinity, then 1 for good."""
    divides_batch: bool = True
    """Whether the batch may be divided into micro-batches: not if images are compared with each other."""
    hardest: float = 1.0
    """Fraction of the batch, with the largest losses, that has a backward pass."""


def forward_backward(
    module: nn.Module,
    parts: Parts,
    *,
    loss_of: LossOf,
    state: StepState,
    autocast: Callable[[], AbstractContextManager[None]],
    processes: Processes,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Add the mean gradient of the batch to every parameter; return the summed loss and the sums to log.

    With `state.hardest` below 1, the gradient is the mean over the images with the largest losses; the loss and sums
    are those of all images.
    Out of memory halves the micro-batch and restarts the batch: the global batch, and so the result, is unchanged.
    """
    while True:
        try:
            if state.hardest == 1:
                return accumulate(module, parts, loss_of=loss_of, size=state.micro_batch, autocast=autocast)
            losses, sums = score(module, parts, loss_of=loss_of, size=state.micro_batch, autocast=autocast)
            chosen = hardest_of(parts, losses, share=state.hardest)
            accumulate(module, chosen, loss_of=loss_of, size=state.micro_batch, autocast=autocast)
            return losses.sum(), sums
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # With several processes, the others already wait for the gradient all-reduce.
            if state.micro_batch == 1 or processes.world_size > 1 or not state.divides_batch:
                raise out_of_memory(state) from None
        halve(module, state)


def out_of_memory(state: StepState) -> NoMemoryError:
    """Return the error for a step that does not fit in memory and cannot be halved automatically."""
    count, fewer = state.micro_batch, list[TryOption]()
    if count > 1 and state.divides_batch:
        fewer = [TryOption("set", "to take fewer images at a time", f"training.micro_batch={count // 2}")]
    elif count > 1:
        fewer = [TryOption("batch_size", "to compare fewer images", count // 2)]
    return NoMemoryError(
        f"out of memory with {counted(count, 'image')} at a time on each device; use a smaller model or image "
        "size, or divide the weights of several devices by sharding",
        advice=[
            *fewer,
            TryOption("set", "to keep less in memory", "model_options.activation_checkpointing=true"),
        ],
    )


def accumulate(
    module: nn.Module,
    parts: Parts,
    *,
    loss_of: LossOf,
    size: int,
    autocast: Callable[[], AbstractContextManager[None]],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run the batch in micro-batches of `size`; gradients are exchanged with the last of them."""
    count = len(parts[0])
    total = torch.zeros((), device=parts[0].device)
    sums: dict[str, Tensor] = {}
    starts = range(0, count, size)
    for start in starts:
        *piece, keys = (part[start : start + size] for part in parts)
        # The backward pass may recompute layers, which must draw the same random numbers.
        with exchange(module, now=start == starts[-1]), randomness_of(keys):
            with autocast():
                losses, stats = loss_of(module, tuple(piece))
            torch.autograd.backward(losses.sum() / count)
        total += losses.detach().sum()
        for name, value in stats.items():
            sums[name] = sums[name] + value.detach() if name in sums else value.detach()
    return total, sums


def score(
    module: nn.Module,
    parts: Parts,
    *,
    loss_of: LossOf,
    size: int,
    autocast: Callable[[], AbstractContextManager[None]],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of every image (B,) and the sums to log, by a forward pass in micro-batches of `size`.

    Random layers draw by image, so an image has the same loss here as in its backward pass.
    """
    losses: list[Tensor] = []
    sums: dict[str, Tensor] = {}
    for start in range(0, len(parts[0]), size):
        *piece, keys = (part[start : start + size] for part in parts)
        with torch.no_grad(), randomness_of(keys), autocast():
            scored, stats = loss_of(module, tuple(piece))
        losses.append(scored.float())
        for name, value in stats.items():
            sums[name] = sums[name] + value if name in sums else value
    return torch.cat(losses), sums


def hardest_of(parts: Parts, losses: Tensor, *, share: float) -> Parts:
    """Return the rows of the batch with the largest losses, at least one; their number is fixed by the batch size."""
    rows = losses.topk(max(round(share * len(losses)), 1)).indices
    return tuple(part[rows] for part in parts)


def exchange(module: nn.Module, *, now: bool) -> AbstractContextManager[None]:
    """Exchange gradients with other processes in this backward pass, or accumulate them locally."""
    inner = uncompiled(module)
    if isinstance(inner, nn.parallel.DistributedDataParallel):
        return nullcontext() if now else inner.no_sync()
    if isinstance(inner, FSDPModule):
        inner.set_requires_gradient_sync(now)
    return nullcontext()


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` wrapped, or the module itself."""
    inner: nn.Module = getattr(module, "_orig_mod", module)
    return inner


def fit_micro_batch(
    module: nn.Module,
    parts: Parts,
    *,
    loss_of: LossOf,
    state: StepState,
    autocast: Callable[[], AbstractContextManager[None]],
    processes: Processes,
) -> None:
    """With several processes, find a micro-batch that fits on all of them before the first step.

    Each tries one forward and backward pass without exchanging gradients; all use the smallest result. Sharded
    models exchange weights in every pass, so one process cannot try alone.
    """
    inner = uncompiled(module)
    is_alone = processes.world_size == 1 or processes.device.type != "cuda"
    if is_alone or isinstance(inner, FSDPModule) or not state.divides_batch:
        return
    inner = inner.module if isinstance(inner, nn.parallel.DistributedDataParallel) else inner
    while True:
        failed = False
        try:
            with autocast():
                losses, _ = loss_of(inner, tuple(part[: state.micro_batch] for part in parts[:-1]))
            torch.autograd.backward(losses.sum())
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            failed = True
        inner.zero_grad(set_to_none=True)
        if not anyone(failed, processes):
            return
        if state.micro_batch == 1:
            raise out_of_memory(state)
        halve(module, state)


def halve(module: nn.Module, state: StepState) -> None:
    """Free the memory of the failed attempt and continue with half the micro-batch."""
    module.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    state.micro_batch = max(state.micro_batch // 2, 1)
    notice(
        f"Out of memory: micro-batches of {state.micro_batch} from here on; batch and result stay the same"
    )


def update(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    loss: Tensor,
    clip_norm: float | None,
    state: StepState,
    processes: Processes,
) -> Tensor:
    """Clip by global norm and step, unless NaN or infinity has occurred; return the norm before clipping."""
    parameters = [p for p in module.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    # The norm is global, the loss local to each process: all must skip the same update.
    state.bad = largest(torch.maximum(state.bad, (~(loss + norm).isfinite()).to(state.bad.dtype)), processes)
    if clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
    # The fused kernels read this flag on the device and leave weights and moments unchanged if it is 1.
    optimizer.found_inf = state.bad  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed a task's own random numbers by run, step and process, so that no random state needs to be saved."""
    torch.manual_seed((seed * 1_000_003 + step) * 4099 + rank)
