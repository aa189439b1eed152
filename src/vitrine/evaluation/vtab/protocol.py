"""How VTAB is run: sweep on 800 and 200 images, train on all 1,000, test on the whole test set.

The training itself is a function that is passed in, so that nothing here knows an optimizer.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from vitrine.data.sources.source import Source
from vitrine.data.sources.vtab.task_data import TaskData, find_folders, open_task
from vitrine.data.sources.vtab.tasks import TASKS, TRAIN_IMAGES, VAL_IMAGES, Task
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.metrics import Interval
from vitrine.evaluation.vtab.scores import TaskScore, VtabScores
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import notice

ProtocolName = Literal["vit", "lightweight"]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One training run: SGD with momentum .9 and no weight decay, as both protocols have it."""

    lr: float
    steps: int
    batch_size: int
    image_size: int
    warmup_steps: int
    decay: Literal["cosine", "thirds"]
    """`thirds` divides the learning rate by ten after each third of the steps."""
    may_crop: bool
    may_flip: bool


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The attempts that a task's sweep tries."""

    name: str
    learning_rates: tuple[float, ...]
    steps: tuple[int, ...]
    batch_size: int
    image_size: int
    warmup_steps: int
    decay: Literal["cosine", "thirds"]

    def attempts(self, task: Task) -> list[Attempt]:
        """List what is tried on a task, whose labels decide about crop and flip."""
        return [
            Attempt(
                lr=lr,
                steps=steps,
                batch_size=self.batch_size,
                image_size=self.image_size,
                warmup_steps=min(self.warmup_steps, steps // 5),
                decay=self.decay,
                may_crop=task.may_crop,
                may_flip=task.may_flip,
            )
            for steps in self.steps
            for lr in self.learning_rates
        ]


PROTOCOLS: dict[ProtocolName, Protocol] = {
    # Appendix B.1.1 and Table 4 of the ViT paper: one setting for all tasks, so there is nothing to sweep.
    "vit": Protocol(
        name="vit", learning_rates=(0.01,), steps=(2_500,), batch_size=512, image_size=384, warmup_steps=500,
        decay="cosine",
    ),
    # The lightweight sweep of the VTAB paper: two learning rates and two schedules.
    "lightweight": Protocol(
        name="lightweight", learning_rates=(0.1, 0.01), steps=(2_500, 10_000), batch_size=512, image_size=224,
        warmup_steps=0, decay="thirds",
    ),
}  # fmt: skip

# Trains on the first source and returns whatever `measure` can score; the path is a folder for the run.
FineTune = Callable[[Source, Attempt, Path], object]
# Scores a trained model on a source: share of right answers, with its interval.
Measure = Callable[[object, Source], Interval]


def run_vtab(
    root: Path,
    *,
    fine_tune: FineTune,
    measure: Measure,
    protocol: Protocol,
    folder: Path,
    identity: str,
    model: str,
    tasks: Iterable[Task] = TASKS,
    num_train: int = TRAIN_IMAGES,
    num_val: int = VAL_IMAGES,
    is_first: bool = True,
) -> VtabScores:
    """Run every task that is there, keep each result in `folder`, and go on after those that are kept already.

    `identity` says which model the results belong to; results of another are refused. `is_first` is False on the
    processes that must not write.
    """
    data = open_tasks(root, list(tasks), num_train=num_train, num_val=num_val)
    missing = tuple(task.name for task in TASKS if task.name not in data)
    if missing:
        notice(
            f"{len(missing)} of {len(TASKS)} tasks are missing and will not be averaged: {', '.join(missing)}"
        )
    notice(f"Plan: {plan_in_words(data, protocol)}; to {folder}")
    scores = []
    for name, found in data.items():
        file = folder / "tasks" / f"{name}.json"
        kept = read_score(file, identity=identity, protocol=protocol)
        if kept is None:
            kept = run_task(
                found, fine_tune=fine_tune, measure=measure, protocol=protocol, folder=folder / name
            )
            if is_first:
                write_score(file, kept, identity=identity, protocol=protocol)
        notice(f"{name}: {kept.accuracy}")
        scores.append(kept)
    return VtabScores(model=model, protocol=protocol.name, scores=tuple(scores), missing=missing)


def open_tasks(root: Path, tasks: list[Task], *, num_train: int, num_val: int) -> dict[str, TaskData]:
    """Open every task that is there, before anything is trained: an unfinished root costs no hours."""
    folders = find_folders(root, tasks)
    if not any(folders.values()):
        raise DataError(
            f"{root} holds none of VTAB's {len(tasks)} task folders; the first would be {tasks[0].folders[0]}"
        )
    return {
        task.name: open_task(path, task, num_train=num_train, num_val=num_val)
        for task in tasks
        if (path := folders[task.name]) is not None
    }


def plan_in_words(data: Mapping[str, TaskData], protocol: Protocol) -> str:
    """Say what will be trained."""
    runs = sum(_count_runs(protocol, found.task) for found in data.values())
    return (
        f"{len(data)} of {len(TASKS)} tasks by the {protocol.name} protocol, {runs} runs of "
        f"{' or '.join(f'{steps:,}' for steps in protocol.steps)} steps of {protocol.batch_size} at "
        f"{protocol.image_size} px"
    )


def run_task(
    data: TaskData, *, fine_tune: FineTune, measure: Measure, protocol: Protocol, folder: Path
) -> TaskScore:
    """Sweep on 800 and 200 where there is a choice, train on 1,000 with the best, test on all test images."""
    attempts = protocol.attempts(data.task)
    sweep: dict[str, float] = {}
    best = attempts[0]
    if len(attempts) > 1:
        results = []
        for attempt in attempts:
            words = f"lr-{attempt.lr:g}-steps-{attempt.steps}"
            trained = fine_tune(data.train, attempt, folder / "sweep" / words)
            results.append(measure(trained, data.val).value)
            sweep[words] = results[-1]
        best = attempts[max(range(len(attempts)), key=lambda number: results[number])]
    trained = fine_tune(data.trainval, best, folder / "final")
    return TaskScore(
        task=data.task.name,
        group=data.task.group,
        accuracy=measure(trained, data.test),
        num_test=len(data.test),
        lr=best.lr,
        steps=best.steps,
        layout=data.layout,
        sweep=sweep,
    )


def _count_runs(protocol: Protocol, task: Task) -> int:
    attempts = len(protocol.attempts(task))
    return attempts + 1 if attempts > 1 else 1


def write_score(file: Path, score: TaskScore, *, identity: str, protocol: Protocol) -> None:
    """Keep a task's result, so that an interrupted run goes on after it."""
    with write_atomically(file, mode="w") as opened:
        json.dump({"model": identity, "protocol": asdict(protocol), "score": asdict(score)}, opened, indent=2)


def read_score(file: Path, *, identity: str, protocol: Protocol) -> TaskScore | None:
    """Recall a task's result; refuse one of another model or protocol."""
    if not file.is_file():
        return None
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        score = kept["score"]
        found = TaskScore(**{**score, "accuracy": Interval(**score["accuracy"])})
        same_protocol = kept["protocol"] == json.loads(json.dumps(asdict(protocol)))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is not a result of VTAB ({error}); remove it") from error
    if kept["model"] != identity or not same_protocol:
        what = "model" if kept["model"] != identity else "protocol"
        raise ConfigError(f"{file} is the result of another {what}; use another folder", option="out")
    return found
