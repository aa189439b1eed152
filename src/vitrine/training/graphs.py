"""A step as a CUDA graph: recorded once, then replayed, so that the host launches one graph instead of 1,000 kernels.

A small model's kernels take less time than their launches. A replay reads and writes the memory of the recording: the
batch is copied to the recorded batch's memory, learning rates are tensors, and random numbers start at the last seed
that the host set. Everything runs on one stream that is not the default stream, which cannot be recorded. The first
steps run without a graph: they compile, choose kernels and create the optimizer's tensors.
"""

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from vitrine.errors import TrainingError, TryOption
from vitrine.training.step import Parts, StepState, out_of_memory

# The outputs of a step: the summed loss, sums to log, the norm of the gradient.
Taken = tuple[Tensor, dict[str, Tensor], Tensor]
WARM_UP_STEPS = 3


class RecordingError(TrainingError):
    """A step that cannot be recorded as a CUDA graph."""


class ReplayedStep:
    """Takes steps: the first without a graph, then by replaying a recorded step on every batch."""

    def __init__(self, take_step: Callable[[Parts], Taken], *, state: StepState) -> None:
        self.take_step, self.state = take_step, state
        self.num_launched = 0
        self.parts: Parts = ()
        self.replay: Callable[[], Taken] | None = None

    def __call__(self, parts: Parts) -> Taken:
        """Take one step; its results are valid until the next step."""
        if self.num_launched < WARM_UP_STEPS:
            self.num_launched += 1
            return self.take_step(parts)
        if self.replay is None:
            self.record(parts)
        assert self.replay is not None
        for own, part in zip(self.parts, parts, strict=True):
            assert own.shape == part.shape, "all batches of a run have one shape"
            own.copy_(part)
        loss, sums, norm = self.replay()
        return loss, dict(sums), norm

    def record(self, parts: Parts) -> None:
        """Record a step on tensors of these shapes; nothing is computed yet."""
        self.parts = tuple(part.clone() for part in parts)
        flag = self.state.bad = self.state.bad.clone()

        def step() -> Taken:
            taken = self.take_step(self.parts)
            # The step writes its flag to a new tensor; the next replay reads this one.
            self.state.bad = flag.copy_(self.state.bad)
            return taken

        try:
            self.replay = recorded(step)
        except torch.OutOfMemoryError:
            raise out_of_memory(self.state) from None
        except RuntimeError as error:
            # Ending a failed recording raises a second error; the first one has the reason.
            cause = error if error.__context__ is None else error.__context__
            if isinstance(cause, TrainingError):
                raise cause from None
            reason = str(cause).splitlines()[0]
            raise RecordingError(
                f"a step cannot be recorded as a CUDA graph ({reason})",
                advice=[TryOption("set", "to launch its kernels one by one", "training.graphs=false")],
            ) from error


def recorded(step: Callable[[], Taken]) -> Callable[[], Taken]:
    """Record the launches of a function on the current stream; return the function that replays them."""
    graph = torch.cuda.CUDAGraph()
    gc.collect()  # tensors and graphs of an earlier run must not be freed during the recording
    # Other threads may keep pinning memory for later batches.
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        taken = step()

    def replay() -> Taken:
        graph.replay()
        return taken

    return replay


def can_record(device: torch.device, *, world_size: int) -> bool:
    """Whether steps can be recorded here: one process on a CUDA device."""
    return device.type == "cuda" and world_size == 1


@contextmanager
def on_own_stream(device: torch.device) -> Iterator[None]:
    """Run a block on the stream on which steps are recorded."""
    if device.type != "cuda":
        yield
        return
    stream, outside = own_stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(outside)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outside.wait_stream(stream)


@functools.cache
def own_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of a device, one for all runs of a process because workspaces belong to streams."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def put_rates_in_tensors(optimizer: torch.optim.Optimizer, *, device: torch.device) -> None:
    """Keep learning rates on the device, where every replay reads their current value."""
    for group in optimizer.param_groups:
        group["lr"] = torch.full((), float(group["lr"]), device=device)
        group["capturable"] = True  # torch's own optimizers cannot be recorded without it
    # They warn when such a step runs without a graph, as the first ones do.
    optimizer._warned_capturable_if_run_uncaptured = True
