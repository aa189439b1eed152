"""The checkpoints of a running training: when they are saved, and how a run that must stop saves itself first."""

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from vitrine.errors import CheckpointError, DataError, RepeatedError, TryVerb, VitrineError
from vitrine.runtime.devices import is_bf16
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.runtime.progress import notice
from vitrine.runtime.remote_run import publish_run
from vitrine.runtime.run_address import shown_place
from vitrine.runtime.run_folder import BEST, LAST, STOPPED
from vitrine.spelling import some_of
from vitrine.training.config import TrainingConfig
from vitrine.training.metrics_log import RunningSums
from vitrine.training.saving import newest_state, numbers_of, remove_old_state, remove_state, save_state
from vitrine.training.state import TrainingState
from vitrine.training.stopping import NoMemoryError, StoppedError, not_finite
from vitrine.training.task import Task


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Saves the state of a run to its folder."""

    state: TrainingState
    task: Task
    config: TrainingConfig
    folder: Path
    processes: Processes
    shard: bool

    def save(self, name: str, *, must: bool = False) -> bool:
        """Save the state; if the disk is full, warn and continue, unless `must` is set."""
        path = self.folder / name
        try:
            save_state(
                self.state, path, processes=self.processes, shard=self.shard, keeps_old=name == LAST,
                weights_only=name == BEST,
            )  # fmt: skip
        except (CheckpointError, RepeatedError) as error:
            if must and isinstance(error, CheckpointError):
                advice = [*error.advice, self.resuming("to continue from it")]
                raise CheckpointError(error.problem, advice=advice) from error
            if must:
                raise
            notice(f"Not saved at step {self.state.step}: {error}")
            return False
        self.publish(must=must)
        return True

    def publish(self, *, must: bool) -> None:
        """Upload the run if it is kept at an address; if that fails, the next checkpoint tries again."""

        def publish() -> str:
            try:
                publish_run(self.folder)
            except CheckpointError as error:
                if must:
                    raise
                return str(error)
            return ""

        if problem := on_first_process(publish, self.processes):
            notice(f"Not uploaded at step {self.state.step}: {problem}")

    def clean_up(self) -> None:
        """Remove what a finished run no longer needs: the checkpoint before the last, and weights before NaN."""
        if self.processes.is_first:
            remove_state(self.folder / STOPPED)
            remove_old_state(self.folder / LAST)

    def stop_not_finite(self, sums: RunningSums) -> NoReturn:
        """Stop with the weights of the last good step; report the step, its files and possible fixes.

        The same weights on the same batch fail at any learning rate, so the last checkpoint is kept to resume from.
        """
        bad_step = sums.first_bad_step(self.state.step)
        batch = some_of(self.task.names_of(bad_step)) or "not named"
        self.state.step, self.state.sums = bad_step, {}
        self.save(STOPPED)
        last = newest_state(self.folder / LAST)
        raise not_finite(
            step=bad_step,
            batch=batch,
            config=self.config,
            is_bf16=is_bf16(self.config.precision, device=self.processes.device.type),
            weights=newest_state(self.folder / STOPPED),
            run=self.folder.parent,
            saved_step=bad_step if last is None else int(numbers_of(last)["step"]),
        )

    def stopped(self) -> StoppedError:
        """Return the error of a run that a signal stopped after it was saved."""
        return StoppedError(
            f"stopped after step {self.state.step} of {self.config.total_steps}; everything is saved",
            step=self.state.step,
            advice=[self.resuming("to continue")],
        )

    def saved_on(self, error: VitrineError, sums: RunningSums) -> VitrineError:
        """Save the state before the step that lacked data or memory; return the error with advice on resuming."""
        if sums.is_bad:
            self.stop_not_finite(sums)
        self.state.sums = sums.as_numbers()
        self.save(LAST, must=True)
        kind = NoMemoryError if isinstance(error, NoMemoryError) else DataError
        return kind(
            f"{error.problem}; training stopped after step {self.state.step}, and everything is saved",
            option=error.option,
            advice=[*error.advice, self.resuming("to continue")],
        )

    def resuming(self, purpose: str) -> TryVerb:
        """Return the advice to resume this run."""
        return TryVerb("resume", (shown_place(self.folder.parent),), purpose)
