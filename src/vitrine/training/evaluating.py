"""Evaluations within a run: of the averaged and the raw weights, and which are kept as the best."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from vitrine.runtime.progress import notice
from vitrine.runtime.run_folder import BEST
from vitrine.training.checkpoints import Checkpoints
from vitrine.training.metrics_log import evaluation_in_words


@dataclass
class Evaluations:
    """Evaluates the model of a run, writes the scores, keeps the best weights."""

    checkpoints: Checkpoints
    write: Callable[[dict[str, Any]], None]
    last: dict[str, float] = field(default_factory=dict)
    """Scores of the latest evaluation."""

    def evaluate(self) -> None:
        """Evaluate the model, its averages if there are any, and keep it if it is the best so far."""
        state, task = self.checkpoints.state, self.checkpoints.task
        if task.evaluate is None:
            return
        raw = self.scores(is_averaged=False) if self.checkpoints.config.evaluates_twice else {}
        scores = self.last = self.scores(is_averaged=True)
        state.evaluated_step = state.step
        # Names of raw scores have another prefix than those of validation: they do not select the best weights.
        values = {f"val_{name}": value for name, value in scores.items()}
        self.write(
            {"step": state.step, **values, **{f"raw_val_{name}": value for name, value in raw.items()}}
        )
        beside = f"; raw weights {evaluation_in_words(raw)}" if raw else ""
        notice(f"Step {state.step:,}: validation {evaluation_in_words(scores)}{beside}")
        self.report(state.watched.after_evaluation(state.step, scores))
        self.keep_if_best(scores)

    def scores(self, *, is_averaged: bool) -> dict[str, float]:
        """Evaluate the averages, if there are any, or the raw weights."""
        state, task = self.checkpoints.state, self.checkpoints.task
        assert task.evaluate is not None
        state.model.eval()
        try:
            with torch.no_grad():
                if not is_averaged or state.averages is None:
                    return self._scores(draws=is_averaged)
                with state.averages.applied_to(state.model):
                    return self._scores(draws=True)
        finally:
            state.model.train()

    def _scores(self, *, draws: bool) -> dict[str, float]:
        state, task = self.checkpoints.state, self.checkpoints.task
        assert task.evaluate is not None
        scores = task.evaluate(state.model)
        if draws and task.draw is not None:
            task.draw(state.model, state.step)
        return scores

    def report(self, event: str | None) -> None:
        """Report an event of the monitor and log it."""
        if event is not None:
            self.write({"step": self.checkpoints.state.step, "event": event})
            notice(event)

    def keep_if_best(self, scores: dict[str, float]) -> None:
        """Save the weights as the best if these are the best scores so far."""
        state, task = self.checkpoints.state, self.checkpoints.task
        if task.metric is None:
            return
        value = scores.get(task.metric)
        loss = None if task.criterion is None else scores.get(task.criterion)
        is_better, is_as_good = state.compared(value, loss)
        state.evaluations_since_best = 0 if is_better else state.evaluations_since_best + 1
        # Of two equal scores the later wins: it was trained for longer, to a lower learning rate.
        if is_better or is_as_good:
            before = state.best, state.best_step, state.best_loss
            state.best, state.best_step, state.best_loss = value, state.step, loss
            if not self.checkpoints.save(BEST):  # the reported best is the kept one
                state.best, state.best_step, state.best_loss = before
            elif task.on_best is not None:
                task.on_best()
