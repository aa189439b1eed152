"""The training loop. Objective (`prepare`, `loss_of`) and evaluation are passed in."""

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrine.errors import ConfigError, DataError
from vitrine.models.dropout import image_keys, number_random_layers
from vitrine.models.kernels import use_kernels
from vitrine.runtime.devices import computing_in
from vitrine.runtime.hardware import peak_memory
from vitrine.runtime.processes import Processes, anyone, on_first_process
from vitrine.runtime.progress import announced, notice
from vitrine.runtime.run_folder import BEST, LAST
from vitrine.spelling import counted
from vitrine.training.averages import Averages, WeightAverages
from vitrine.training.checkpoints import Checkpoints
from vitrine.training.config import TrainingConfig
from vitrine.training.distribution import distributed
from vitrine.training.evaluating import Evaluations
from vitrine.training.graphs import ReplayedStep, Taken, can_record, on_own_stream, put_rates_in_tensors
from vitrine.training.metrics_log import RunningSums, Sink, live_line
from vitrine.training.optimizer import freeze, learning_rate, make_optimizer, set_rates
from vitrine.training.phases import Phase, phase_at
from vitrine.training.saving import load_state, newest_state, numbers_of, remove_leftovers
from vitrine.training.schedule_free import ScheduleFree, ScheduleFreeAverages
from vitrine.training.state import TrainingState
from vitrine.training.step import Parts, StepState, fit_micro_batch, forward_backward, seed_step, update
from vitrine.training.stopping import NoMemoryError, saving_on_signals
from vitrine.training.task import Outcome, Task


def train(
    model: nn.Module,
    task: Task,
    *,
    config: TrainingConfig,
    folder: Path,
    sinks: Sequence[Sink] = (),
    processes: Processes | None = None,
    shard: bool = False,
    resume_from: Path | None = None,
) -> Outcome:
    """Train `model` in place for `config.total_steps`; checkpoints go to `folder`."""
    processes = processes or Processes()
    run = Run(model, task, config=config, folder=folder, sinks=sinks, processes=processes, shard=shard)
    if resume_from is not None:
        load_state(run.state, resume_from, processes=processes)
    on_first_process(lambda: remove_leftovers(folder / LAST, used=resume_from), processes)
    with saving_on_signals(run):
        return run.go()


class Run:
    """A running training: the wrapped model, and the state that checkpoints keep."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        *,
        config: TrainingConfig,
        folder: Path,
        sinks: Sequence[Sink],
        processes: Processes,
        shard: bool,
    ) -> None:
        self.task, self.config, self.folder, self.sinks = task, config, folder, sinks
        self.processes, self.shard = processes, shard
        self.model = model.to(processes.device)
        self.wants_to_stop = False
        if shard and processes.world_size > 1 and config.optimizer in ("lamb", "schedule-free"):
            raise ConfigError(
                f"{config.optimizer} needs whole tensors, which sharding divides; use another optimizer, or no "
                "sharding"
            )
        freeze(self.model, config)
        number_random_layers(self.model)
        use_kernels(self.model, device=processes.device, precision=config.precision)
        self.module = distributed(self.model, processes, shard=shard)
        if config.compiles_on(processes.device.type):
            # A second image size would make torch compile for any size, which is slower than once per phase.
            is_dynamic = False if task.phases else None
            self.module = torch.compile(self.module, dynamic=is_dynamic)  # type: ignore[assignment]
        optimizer = make_optimizer(self.model, config)
        self.uses_graphs = config.graphs and can_record(processes.device, world_size=processes.world_size)
        if self.uses_graphs:
            put_rates_in_tensors(optimizer, device=processes.device)
        averages: WeightAverages | None = None
        if isinstance(optimizer, ScheduleFree):
            averages = ScheduleFreeAverages(self.model, optimizer)
        elif config.average_decay:
            averages = Averages(self.model, decay=config.average_decay)
        self.state = TrainingState(model=self.model, optimizer=optimizer, averages=averages)
        self.checkpoints = Checkpoints(
            state=self.state, task=task, config=config, folder=folder, processes=processes, shard=shard
        )
        self.evaluations = Evaluations(self.checkpoints, self.write)

    def go(self) -> Outcome:
        """Take every remaining step; if data or memory fails, save and stop."""
        self.began, first = time.monotonic(), self.state.step
        sums = RunningSums(self.processes, sums=self.state.sums)
        with on_own_stream(self.processes.device) if self.uses_graphs else nullcontext():
            try:
                self.take_all_steps(sums)
                return self.finish(sums)
            except (DataError, NoMemoryError) as error:
                if self.processes.world_size > 1 or self.state.step == first:
                    raise
                self.model.zero_grad(set_to_none=True)
                raise self.checkpoints.saved_on(error, sums) from error

    def take_all_steps(self, sums: RunningSums) -> None:
        """Take every remaining step; log, evaluate and save in between."""
        config, state, task = self.config, self.state, self.task
        local_batch = config.batch_size // self.processes.world_size
        wanted = min(config.micro_batch or local_batch, local_batch)
        step_state = StepState(
            micro_batch=min(state.micro_batch or wanted, wanted),
            bad=torch.zeros((), device=self.processes.device),
            divides_batch=task.divides_batch,
        )
        phase: Phase | None = None
        first, waited = state.step, 0.0
        if first == 0:
            self.checkpoints.save(LAST)  # so that there is always a checkpoint to resume from
            if task.evaluates_start and state.evaluated_step is None:
                self.evaluate_apart(sums)
                self.checkpoints.save(LAST)  # a run that is resumed here does not evaluate again
        began = time.monotonic()
        batches = iter(task.batches(state.step, config.total_steps))
        self.model.train()
        with announced("Training", total=config.total_steps, done=state.step) as advance:
            while state.step < config.total_steps and not self.is_patience_over:
                waiting = time.monotonic()
                batch = next(batches)
                waited += time.monotonic() - waiting
                seed_step(config.seed, state.step, self.processes.rank)
                parts = (*task.prepare(batch), self.keys(local_batch))
                current = phase_at(state.step, task.phases, total_steps=config.total_steps)
                if current is not phase:
                    phase, take_step = current, self.stepper(current, step_state)
                    fit_micro_batch(
                        self.module, parts, loss_of=task.loss_of, state=step_state, autocast=self.autocast,
                        processes=self.processes,
                    )  # fmt: skip
                rate = self.set_learning_rate()
                loss, stats, norm = take_step(parts)
                if task.after_step is not None:
                    task.after_step(self.model, stats, state.step, step_state.bad)
                if state.averages is not None:
                    state.averages.update(step=state.step)
                state.step += 1
                if step_state.micro_batch < local_batch:
                    state.micro_batch = step_state.micro_batch
                sums.add(loss, stats, norm, step_state.bad, images=len(parts[0]))
                note = ""
                if self.is_due(config.log_every):
                    note = self.log(sums, rate, share_waited=waited / max(time.monotonic() - began, 1e-9))
                    began, waited = time.monotonic(), 0.0
                advance(1, note)
                if config.evaluate_every and state.step % config.evaluate_every == 0:
                    began += self.evaluate_apart(sums)
                self.checkpoint_if_due(sums)
        if self.is_patience_over and state.step < config.total_steps:
            number = counted(state.evaluations_since_best, "evaluation")
            notice(
                f"Stopped early, after step {state.step:,} of {config.total_steps:,}: no improvement in {number}"
            )

    def stepper(self, phase: Phase, step_state: StepState) -> Callable[[Parts], Taken]:
        """Return the function that takes the steps of a phase; a recorded step belongs to one phase."""
        step_state.hardest = phase.hardest
        take_step = functools.partial(self.take_step, step_state=step_state)
        return ReplayedStep(take_step, state=step_state) if self.uses_graphs else take_step

    def take_step(self, parts: Parts, *, step_state: StepState) -> Taken:
        """Take one step on a prepared batch, without waiting for the device."""
        loss, stats = forward_backward(
            self.module, parts, loss_of=self.task.loss_of, state=step_state, autocast=self.autocast,
            processes=self.processes,
        )  # fmt: skip
        norm = update(
            self.model, self.state.optimizer, loss=loss, clip_norm=self.config.clip_norm, state=step_state,
            processes=self.processes,
        )  # fmt: skip
        return loss, stats, norm

    def keys(self, local_batch: int) -> torch.Tensor:
        """Return the keys of this process's images of the next step, by their place in the run."""
        first = self.state.step * self.config.batch_size + self.processes.rank * local_batch
        return image_keys(self.config.seed, first=first, count=local_batch, device=self.processes.device)

    def is_due(self, every: int) -> bool:
        """Whether the number of steps done is a multiple of `every`, or all are done."""
        return self.state.step % every == 0 or self.state.step == self.config.total_steps

    @property
    def is_patience_over(self) -> bool:
        """Whether too many evaluations in a row brought no improvement."""
        patience = self.config.patience
        return patience is not None and self.state.evaluations_since_best >= patience

    def autocast(self) -> AbstractContextManager[None]:
        """Compute in the run's precision."""
        return computing_in(self.config.precision, self.processes.device.type)

    def set_learning_rate(self) -> float:
        """Set the learning rate of every group for the next step; return the schedule's."""
        c = self.config
        rate = learning_rate(
            self.state.step, peak=c.lr, warmup_steps=c.warmup_steps, total_steps=c.total_steps, decay=c.decay,
            end=c.end_lr, boundaries=c.boundaries, cooldown=c.cooldown,
        )  # fmt: skip
        set_rates(self.state.optimizer, rate)
        return rate

    def log(self, sums: RunningSums, rate: float, *, share_waited: float) -> str:
        """Write a record of the means since the last one; only this makes the host wait for the device."""
        means = sums.fetch()
        if means.pop("bad"):
            self.checkpoints.stop_not_finite(sums)
        record = {"step": self.state.step, **means, "lr": rate, "waiting_for_data": round(share_waited, 4)}
        memory = peak_memory(self.processes.device)
        if memory is not None:
            record["memory_gib"] = round(memory / 2**30, 3)
        self.write(record)
        sums.clear()
        self.state.sums = {}
        self.evaluations.report(self.state.watched.after_log(record))
        return live_line(record, spike_step=self.state.watched.spike_step)

    def write(self, record: dict[str, Any]) -> None:
        """Pass a record to every sink, on the first process only."""
        if self.processes.is_first:
            for sink in self.sinks:
                sink.write(record)

    def evaluate_apart(self, sums: RunningSums) -> float:
        """Evaluate; return the duration in seconds, which does not count as training."""
        began = time.monotonic()
        self.evaluations.evaluate()
        sums.exclude_seconds(time.monotonic() - began)
        return time.monotonic() - began

    def checkpoint_if_due(self, sums: RunningSums) -> None:
        """Save at every multiple of the checkpoint interval, and when a signal asks to stop."""
        is_multiple = self.state.step % self.config.checkpoint_steps == 0
        stops = self.wants_to_stop
        if self.processes.world_size > 1:  # processes agree on stopping, but not at every step
            stops = anyone(stops, self.processes) if self.is_due(self.config.log_every) else False
        if not is_multiple and not stops:
            return
        if sums.is_bad:  # not yet logged: these steps did nothing, and must not count as done
            self.checkpoints.stop_not_finite(sums)
        self.state.sums = sums.as_numbers()
        self.checkpoints.save(LAST, must=stops)
        if stops:
            raise self.checkpoints.stopped()

    def finish(self, sums: RunningSums) -> Outcome:
        """Evaluate and save for the last time."""
        if sums.is_bad:
            self.checkpoints.stop_not_finite(sums)
        steps = self.state.step
        if self.state.evaluated_step != steps:
            self.evaluations.evaluate()
        self.state.sums = sums.as_numbers()
        self.checkpoints.save(LAST, must=True)
        self.checkpoints.clean_up()
        # A resumed run may have better weights from before it was stopped.
        kept = newest_state(self.folder / BEST)
        numbers = self.state.numbers() if kept is None else numbers_of(kept)
        return Outcome(
            steps=steps,
            best=numbers["best"],
            best_step=numbers["best_step"],
            last_evaluation=self.evaluations.last,
            images_per_second=sums.overall_rate,
            seconds=time.monotonic() - self.began,
        )
