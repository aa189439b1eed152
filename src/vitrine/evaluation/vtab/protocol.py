"""The protocol of VTAB: sweep on 800 and 200 images, train on all 1,000, test on the whole test set.

Training is a function that is passed in, so that nothing here depends on an optimizer.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vitrine.data.sources.source import Source
from vitrine.data.sources.vtab.task_data import TaskData, find_folders, open_task
from vitrine.data.sources.vtab.tasks import TASKS, TRAIN_IMAGES, VAL_IMAGES, Task
from vitrine.errors import ConfigError, DataError, TryOption
from vitrine.evaluation.metrics import Interval
from vitrine.evaluation.vtab.scores import TaskScore, VtabScores
from vitrine.runtime.files import parse_json, write_atomically
from vitrine.runtime.progress import notice, present

ProtocolName = Literal["vit", "lightweight"]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One training run: SGD with momentum 0.9 and no weight decay, as in both protocols."""

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
    """The attempts of a task's sweep."""

    name: str
    learning_rates: tuple[float, ...]
    steps: tuple[int, ...]
    batch_size: int
    image_size: int
    warmup_steps: int
    decay: Literal["cosine", "thirds"]

    def attempts(self, task: Task) -> list[Attempt]:
        """List the attempts on a task; its labels decide about crop and flip."""
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


@dataclass(frozen=True, kw_only=True)
class VtabPlan:
    """The plan of a VTAB run."""

    num_tasks: int
    num_runs: int
    protocol: Protocol
    folder: Path


PROTOCOLS: dict[ProtocolName, Protocol] = {
    # Appendix B.1.1 and Table 4 of the ViT paper: one setting for all tasks, so there is no sweep.
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


def changed_protocol(
    name: ProtocolName, *, steps: int | None, batch_size: int | None, image_size: int | None
) -> Protocol:
    """Return a protocol with other steps, batch or image size, under a name that lists the changes."""
    changes: dict[str, Any] = {}
    words = []
    if steps is not None:
        changes["steps"], words = (steps,), [f"steps {steps}"]
    if batch_size is not None:
        changes["batch_size"] = batch_size
        words.append(f"batch {batch_size}")
    if image_size is not None:
        changes["image_size"] = image_size
        words.append(f"size {image_size}")
    full = f"{name} with {', '.join(words)}" if words else name
    return replace(PROTOCOLS[name], name=full, **changes)


# Trains on the source and returns a model for `measure`; the path is the folder of the run.
FineTune = Callable[[Source, Attempt, Path], object]
# Measures the accuracy of a trained model on a source, with its interval.
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
    """Run every task whose data is there and store each result in `folder`; stored results are not repeated.

    `identity` names the model that the results belong to; results of another are refused. `is_first` is False on
    processes that must not write.
    """
    data = open_tasks(root, list(tasks), num_train=num_train, num_val=num_val)
    missing = _announced(data, protocol=protocol, folder=folder)
    scores = []
    for name, task_data in data.items():
        file = folder / "tasks" / f"{name}.json"
        kept = read_score(file, identity=identity, protocol=protocol)
        if kept is None:
            kept = run_task(
                task_data, fine_tune=fine_tune, measure=measure, protocol=protocol, folder=folder / name
            )
            if is_first:
                write_score(file, kept, identity=identity, protocol=protocol)
        notice(f"{name}: {kept.accuracy}")
        scores.append(kept)
    return VtabScores(model=model, protocol=protocol.name, scores=tuple(scores), missing=missing)


def _announced(data: Mapping[str, TaskData], *, protocol: Protocol, folder: Path) -> tuple[str, ...]:
    """Present the plan; return the names of the tasks that are missing."""
    missing = tuple(task.name for task in TASKS if task.name not in data)
    if missing:
        notice(
            f"{len(missing)} of {len(TASKS)} tasks are missing and not part of any mean: {', '.join(missing)}"
        )
    num_runs = sum(_count_runs(protocol, one.task) for one in data.values())
    present(VtabPlan(num_tasks=len(data), num_runs=num_runs, protocol=protocol, folder=folder))
    return missing


def open_tasks(root: Path, tasks: list[Task], *, num_train: int, num_val: int) -> dict[str, TaskData]:
    """Open the data of every task that is there before anything is trained, so that bad data costs no hours."""
    folders = find_folders(root, tasks)
    if not any(folders.values()):
        raise DataError(f"{root} holds none of the {len(tasks)} task folders, such as {tasks[0].folders[0]}")
    return {
        task.name: open_task(path, task, num_train=num_train, num_val=num_val)
        for task in tasks
        if (path := folders[task.name]) is not None
    }


def run_task(
    data: TaskData, *, fine_tune: FineTune, measure: Measure, protocol: Protocol, folder: Path
) -> TaskScore:
    """Sweep on 800 and 200 images if there are several attempts, train on 1,000 with the best, test on all."""
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
    """Store a task's result, so that an interrupted run continues after it."""
    with write_atomically(file, mode="w") as opened:
        json.dump({"model": identity, "protocol": asdict(protocol), "score": asdict(score)}, opened, indent=2)


def read_score(file: Path, *, identity: str, protocol: Protocol) -> TaskScore | None:
    """Read a task's stored result; refuse one of another model or protocol."""
    if not file.is_file():
        return None
    try:
        kept = parse_json(file.read_text(encoding="utf-8"))
        score = kept["score"]
        task_score = TaskScore(**{**score, "accuracy": Interval(**score["accuracy"])})
        same_protocol = kept["protocol"] == json.loads(json.dumps(asdict(protocol)))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is not a stored VTAB result ({error}); remove it") from error
    if kept["model"] != identity or not same_protocol:
        what = "model" if kept["model"] != identity else "protocol"
        raise ConfigError(
            f"{file} is the result of another {what}", advice=[TryOption("out", "to write to another folder")]
        )
    return task_score
