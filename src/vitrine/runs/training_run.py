"""What `pretrain`, `finetune` and `resume` share: from data, model and recipe to a run folder.

The folder: `config.yaml` (re-runs it), `command.txt`, `environment.json`, `classes.json`, `split.csv`, `data.json`,
`metrics.jsonl`, `log.txt`, `checkpoints/` (last, best), `model/` (weights with their record).
"""

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrine.errors import VitrineError
from vitrine.evaluation.scoring import Mistake
from vitrine.runs.run_report import worst_lines
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import counted

if TYPE_CHECKING:
    from vitrine.data.auditing.scan import Issue
    from vitrine.data.preparing.preprocess import Preprocess
    from vitrine.data.sources.source import Source
    from vitrine.models import Model
    from vitrine.recipes import Recipe
    from vitrine.runs.run_report import RunReport
    from vitrine.runs.teachers import Teacher
    from vitrine.runtime.processes import Processes
    from vitrine.training.task import Outcome


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A finished run."""

    folder: Path
    model: Path
    """The folder that `vitrine.load` reads."""
    steps: int
    accuracy: float | None
    """On the validation split, of the weights in `model`."""
    best_step: int | None = None
    """The step of these weights: the best evaluation's, of equals the last."""
    interval: tuple[float, float] | None
    """95 %, by Wilson's rule."""
    num_validation: int
    images_per_second: float
    evaluation: Mapping[str, float] = field(default_factory=dict)
    """All numbers of the last evaluation."""
    objective: str = "labels"
    has_head: bool = True
    """Whether classes were learned."""
    trains_on_all: bool = False
    """Whether the held-out part was trained on in the end, as after a sweep."""
    notes: tuple[str, ...] = ()
    worst: tuple[tuple[str, float], ...] = ()
    """Classes with the lowest F1 on the validation split, the worst first."""
    mistakes: tuple[Mistake, ...] = ()
    """Validation images that are taken for something else, the most confident first."""
    report: Path | None = None
    data: str = ""

    def __str__(self) -> str:
        lines = [*self.notes]
        if not self.has_head:
            return "\n".join([*lines, *self.lines_without_labels()])
        if self.accuracy is None:
            why = (
                "those held out for the sweep included"
                if self.trains_on_all
                else "none held out to measure it on"
            )
            lines.append(f"Trained on all images for {counted(self.steps, 'step')}, {why}")
        else:
            assert self.interval is not None
            low, high = self.interval
            lines.append(
                f"Accuracy {100 * self.accuracy:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}) on "
                f"{counted(self.num_validation, 'validation image')}, {self.when()}"
            )
        lines += worst_lines(self.worst, self.mistakes)
        lines.append(f"Wrote {self.model} (weights, preprocessing, classes)")
        if self.report is not None:
            lines.append(f"Wrote {self.report} (curves, mistakes, what the model looked at)")
        return "\n".join([*lines, *self.next()])

    def next(self) -> list[str]:
        """Say what to do with the model, in commands that can be typed as they are where the data is a folder."""
        folder = shlex.quote(str(self.folder))
        if not self.data or not Path(self.data).exists():
            return [f"Next: vitrine predict {folder} PICTURES, or vitrine inspect {folder} PICTURES"]
        return [
            f"Next: vitrine inspect {folder} {shlex.quote(self.data)}   (what it looks at)",
            f"  or: vitrine predict {folder} PICTURES   (files, folders, patterns)",
        ]

    def when(self) -> str:
        """Say at which step the weights that were kept stood, and what became of them where that is not the last."""
        if self.best_step is None or self.best_step == self.steps:
            return f"after {counted(self.steps, 'step')}"
        last = self.evaluation.get("accuracy")
        end = "" if last is None else f"; at the end {100 * last:.1f} %"
        return f"after step {self.best_step:,} of {self.steps:,}, the best of the evaluations{end}"

    def lines_without_labels(self) -> list[str]:
        """Say what was learned where no label was."""
        numbers = {name: value for name, value in self.evaluation.items() if name != "collapsed"}
        found = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items())
        measured = (
            f"; on {counted(self.num_validation, 'validation image')}: {found}"
            if found
            else "; nothing was held out to measure it on"
        )
        collapsed = (
            ["The representation has collapsed: see log.txt"] if self.evaluation.get("collapsed") else []
        )
        return [
            *collapsed,
            f"Learned by {self.objective} for {counted(self.steps, 'step')}{measured}",
            f"Wrote {self.model} (weights, preprocessing, no head yet)",
            f"Next: vitrine finetune DATA --model {self.folder}, or vitrine fewshot {self.folder} DATA",
        ]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A run that is about to start, or to go on."""

    model: "Model"
    preprocess: "Preprocess"
    splits: "Mapping[str, Source]"
    recipe: "Recipe"
    folder: Path
    verb: str
    data: str
    device: str
    workers: int
    hold_out: float | None = None
    exclude: Path | None = None
    set_aside: tuple[str, ...] = ()
    issues: "tuple[Issue, ...]" = ()
    """What is wrong with the files of the data."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """By split of the data, a hash of the bytes of all images."""
    trains_on_all: bool = False
    """Whether the held-out part is trained on too, as after a sweep."""
    is_sweeping: bool = False
    """Whether learning rates are still being tried, in folders below this one."""
    shard: bool = False
    teacher: "Teacher | None" = None
    """For distillation."""
    tensorboard: bool = False
    wandb: str | None = None
    allow_changed_data: bool = False
    wants_report: bool = True
    """Whether the run ends with its page, which costs one more pass over the validation images."""


def carry_out(setting: Setting, *, resume_from: Path | None = None) -> TrainingResult:
    """Train, keep the run folder, save the model; the same alone and under torchrun."""
    from vitrine.models.kernels import require_precision
    from vitrine.runs.expected_time import expected_seconds
    from vitrine.runs.micro_batches import chosen_micro_batch
    from vitrine.runs.run_plan import plan_of, require_room
    from vitrine.runs.run_records import at_work, optional_sinks, steps_done, write_records
    from vitrine.runs.training_task import make_task, trained_module
    from vitrine.runtime.devices import has_fast_bf16
    from vitrine.runtime.log_file import logged_to
    from vitrine.runtime.processes import joined_processes, on_first_process
    from vitrine.runtime.progress import notice
    from vitrine.training.loop import train
    from vitrine.training.metrics_log import MetricsFile

    folder, run = setting.folder, RunFolder(setting.folder)
    with (
        joined_processes(setting.device) as processes,
        at_work(folder, processes),
        logged_to(run, is_first=processes.is_first),
    ):
        # Before a time is promised.
        require_precision(setting.recipe.training.precision, device=processes.device)
        done = steps_done(resume_from)
        module = trained_module(setting)
        if resume_from is None:
            on_first_process(lambda: require_room(setting, module), processes)
        # With kept answers, making the task asks the teacher about every image: not before the plan.
        task = None if setting.recipe.distillation.caches else make_task(setting, processes)
        fitting = on_first_process(lambda: chosen_micro_batch(setting, processes), processes)
        training = dataclasses.replace(setting.recipe.training, micro_batch=fitting)
        here = dataclasses.replace(setting, recipe=dataclasses.replace(setting.recipe, training=training))
        seconds = expected_seconds(here, processes, module, task, done=done)
        notice(plan_of(here, processes, seconds=seconds, done=done))
        is_new = resume_from is None
        if is_new and setting.recipe.training.precision == "auto" and has_fast_bf16(processes.device):
            notice("This processor multiplies in bf16: --precision bf16 may take half the time")
        task = task or make_task(setting, processes)
        on_first_process(lambda: write_records(setting, is_resumed=resume_from is not None), processes)
        sinks: list[Any] = []
        if processes.is_first:
            sinks = [
                MetricsFile(run, done_steps=done),
                *optional_sinks(setting, done=done),
            ]
        try:
            outcome = train(
                module,
                task,
                config=training,
                folder=run.checkpoints,
                sinks=sinks,
                processes=processes,
                shard=setting.shard,
                resume_from=resume_from,
            )
        except BaseException:
            if setting.wants_report and processes.is_first:
                report_of(dataclasses.replace(setting, splits={}), processes)  # the curves, so far
            raise
        finally:
            for sink in sinks:
                sink.close()
        on_first_process(lambda: save_model(setting), processes)
        report = report_of(setting, processes) if setting.wants_report else None
    return result_of(setting, outcome, report)


def report_of(setting: Setting, processes: "Processes") -> "RunReport | None":
    """Write the page of a run; what keeps it from being written is said and loses nothing else."""
    from vitrine.runs.run_report import write_report
    from vitrine.runtime.progress import notice

    try:
        return write_report(
            setting.folder, splits=setting.splits, device=processes.device, workers=setting.workers
        )
    except (VitrineError, OSError) as error:
        notice(f"No report of the run: {error}")
        return None


def save_model(setting: Setting) -> None:
    """Save the best weights (the last where nothing was evaluated) with their record."""
    from vitrine.checkpoints import save
    from vitrine.models import build
    from vitrine.runs.training_task import weights_of_model
    from vitrine.training.saving import newest_state, weights_of

    run = RunFolder(setting.folder)
    state = newest_state(run.best_checkpoint) or newest_state(run.last_checkpoint)
    assert state is not None
    model = build(setting.model.config)  # the one that was trained may be in pieces, on many devices
    model.load_state_dict(weights_of_model(weights_of(state), setting.recipe.objective))
    save(
        model.eval(),
        run.model,
        preprocess=setting.preprocess,
        classes=list(setting.splits["train"].classes) if setting.model.config.num_classes else None,
        recipe=dataclasses.asdict(setting.recipe),
        overwrite=True,
    )


def result_of(setting: Setting, outcome: "Outcome", report: "RunReport | None" = None) -> TrainingResult:
    """Say how the run ended: the accuracy is that of the weights that were saved."""
    from vitrine.evaluation.bootstrap import wilson_interval
    from vitrine.runs.validation import unjudged
    from vitrine.spelling import printable

    folder, accuracy = setting.folder, outcome.best
    num_validation = len(setting.splits["val"]) if "val" in setting.splits else 0
    notes: tuple[str, ...] = ()
    if setting.set_aside:
        were = "was" if len(setting.set_aside) == 1 else "were"
        count = counted(len(setting.set_aside), "file")
        notes = (f"{count} could not be read and {were} set aside: {folder}/data.json",)
    if accuracy is not None:
        notes += unjudged(setting.splits)
    return TrainingResult(
        folder=folder,
        model=RunFolder(folder).model,
        steps=outcome.steps,
        accuracy=accuracy,
        best_step=outcome.best_step,
        interval=None if accuracy is None else wilson_interval(accuracy, num_validation),
        num_validation=num_validation,
        images_per_second=outcome.images_per_second,
        evaluation=outcome.last_evaluation,
        objective=setting.recipe.objective,
        has_head=setting.model.config.num_classes is not None,
        trains_on_all=setting.trains_on_all,
        notes=notes,
        worst=() if report is None else report.worst,
        mistakes=() if report is None else report.mistakes,
        report=None if report is None else report.file,
        data=printable(setting.data),
    )


def loss_for(source: "Source", recipe: "Recipe") -> "Recipe":
    """Choose the sigmoid loss where images have several labels: a softmax has room for one; and smooth none."""
    from vitrine.runtime.progress import notice

    if not source.is_multi_label or not recipe.needs_labels:
        return recipe
    changes = ["sigmoid loss in the place of softmax"] if recipe.loss != "sigmoid" else []
    changes += ["no label smoothing"] if recipe.augment.label_smoothing else []
    if changes:
        notice(f"Images have several labels: {', '.join(changes)}")
    augment = dataclasses.replace(recipe.augment, label_smoothing=0.0)
    return dataclasses.replace(recipe, loss="sigmoid", augment=augment)
