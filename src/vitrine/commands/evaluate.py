"""`vitrine evaluate`: how good a model is on a test set, with intervals, and where it goes wrong."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_path
from vitrine.commands.model_or_box import Data, ModelOrBox, model_and_data
from vitrine.spelling import counted, with_first

if TYPE_CHECKING:
    from vitrine.checkpoints import Loaded
    from vitrine.data.sources.source import Source
    from vitrine.evaluation.classification import MultiLabel, SingleLabel
    from vitrine.evaluation.metrics import Interval
    from vitrine.evaluation.outputs import Outputs

MOST_WORST = 5
FILES = ("predictions.csv", "metrics.json", "confusion.csv", "report.html")


@dataclass(frozen=True, kw_only=True)
class EvaluateResult:
    """The headline figures and the files that hold the rest."""

    model: str
    data: str
    split: str
    num_images: int
    unreadable: dict[str, str]
    num_classes: int
    top1: "Interval | None"
    top5: "Interval | None"
    real: "Interval | None"
    num_real_images: int | None
    ece: float | None
    macro_f1: float | None
    mean_average_precision: "Interval | None"
    worst: tuple[tuple[str, float], ...]
    """Classes with the lowest F1 (or average precision, with several labels an image)."""
    wrote: tuple[Path, ...]
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 where the evaluation is strict and a file could not be read."""
        return int(self.is_strict and bool(self.unreadable))

    def __str__(self) -> str:
        lines = [
            f"{self.model} on {self.data} ({self.split}): {self.num_images:,} images, {self.num_classes} classes"
        ]
        for words, interval in (
            ("Top-1", self.top1),
            ("Top-5", self.top5),
            ("ReaL", self.real),
            ("Mean average precision", self.mean_average_precision),
        ):
            if interval is not None:
                where = f" on {self.num_real_images:,} images" if words == "ReaL" else ""
                lines.append(f"{words} {interval}{where}")
        if self.top5 is None and self.top1 is not None:
            lines.append(f"Top-5 says nothing with {self.num_classes} classes")
        if self.ece is not None and self.macro_f1 is not None:
            lines.append(f"Mean F1 {100 * self.macro_f1:.2f} %, calibration error {100 * self.ece:.2f} %")
        if named := [f"{name} {100 * value:.1f} %" for name, value in self.worst if value < 1]:
            lines.append("Worst: " + ", ".join(named))
        if self.unreadable:
            lines.append(f"Not scored, as they cannot be read: {with_first(self.unreadable, 'file')}")
        lines += [f"Wrote {path}" for path in self.wrote]
        if self.wrote:
            lines.append(f"Next: open {self.wrote[-1]} in a browser")
        return "\n".join(lines)


@documented
def evaluate(
    model: ModelOrBox = None,
    data: Data = None,
    *,
    split: Annotated[
        str | None,
        Doc("Split to evaluate on [default: test, else val, else all images of data without splits]"),
    ] = None,
    real: Annotated[
        Path | str | None, Doc("ReaL's real.json: also score ImageNet with every acceptable label")
    ] = None,
    out: Annotated[
        Path | str | None,
        Doc("Folder for the report and the predictions [default: a new dated folder under ./runs]"),
    ] = None,
    by_order: Annotated[bool, Doc("Match classes by order instead of by name")] = False,
    size: options.ModelSize = None,
    batch_size: options.BatchAtATime = None,
    workers: options.Readers = 2,
    device: options.Device = "auto",
    precision: options.ModelPrecision = "fp32",
    seed: Annotated[int, Doc("Seed of the bootstrap for the intervals")] = 0,
    strict: Annotated[bool, Doc("Exit with 1 if any file cannot be read")] = False,
    overwrite: Annotated[bool, Doc("Replace the results in the output folder")] = False,
) -> EvaluateResult:
    """Measure accuracy, calibration and confusion with 95 % intervals, and show the mistakes."""
    real, out = as_path(real), as_path(out)
    from vitrine.checkpoints import load
    from vitrine.evaluation.outputs import run_model
    from vitrine.runtime.output_folder import removed_if_empty
    from vitrine.runtime.processes import joined_processes, on_first_process
    from vitrine.runtime.progress import notice

    model, data = model_and_data("evaluate", model, data)
    held_out = held_out_by(model, data) if split is None else None
    chosen, source = held_out or open_test_split(data, split)
    if held_out is None:
        warn_of_trained(model, source)
    loaded = load(model, image_size=size)
    matched = _matched(loaded, source, by_order=by_order)
    lists = _real(real, source, matched)
    with joined_processes(device) as processes:
        place, is_first = processes.device, processes.is_first
        # Before the work and not after it, so that a bad name costs no time; none waits for one that was refused.
        folder = on_first_process(lambda: _folder(out, source, overwrite=overwrite), processes)
        notice(
            f"Plan: {model} on {len(matched):,} images of {data} ({chosen}), {len(matched.classes)} classes, "
            f"{'x'.join(map(str, loaded.preprocess.size))} px, on {place} in {precision}; to {folder}"
        )
        with removed_if_empty(folder):
            outputs = run_model(
                loaded.model.to(place),
                matched,
                preprocess=loaded.preprocess,
                batch_size=batch_size,
                num_workers=workers,
                device=place,
                precision=precision,
            )
    figures = _score(outputs, matched, lists, seed=seed)
    wrote = _write(folder, figures, outputs, matched, model=model, split=chosen) if is_first else ()
    return _result(figures, outputs, matched, model=model, split=chosen, wrote=wrote, is_strict=strict)


def held_out_by(model: str, data: str) -> "tuple[str, Source] | None":
    """Open what the run that a model is from held out of this very data, which has no splits of its own."""
    from vitrine.data.sources.opening import list_splits
    from vitrine.runs.run_data import splits_of_run, trained_on
    from vitrine.runtime.progress import notice

    folder = trained_on(model, data)
    if folder is None or list_splits(data):
        return None
    splits = splits_of_run(folder) or {}
    if "val" not in splits:
        notice(f"{folder} was trained on all of {data}: what follows says nothing about other images")
        return None
    notice(f"{folder} was trained on {data}: only the images that it held out are measured")
    return "held out", splits["val"]


def warn_of_trained(model: str, source: "Source") -> None:
    """Say where images to be measured on are among those that the model was trained on."""
    from vitrine.runs.run_data import num_trained_on
    from vitrine.runtime.progress import notice

    known = num_trained_on(model, source)
    if known:
        notice(
            f"{model} was trained on {known:,} of these {counted(len(source), 'image')}: what follows is too good; "
            "the data that it was trained on, given whole, is measured on what was held out"
        )


def open_test_split(data: str, split: str | None) -> "tuple[str, Source]":
    """Open the split to test on, and say which it is: the one asked for, else test, val, or a set without splits."""
    from vitrine.data.sources.opening import list_splits, open_source
    from vitrine.data.sources.source import ALL

    if split is None:
        own = list_splits(data)
        split = next((name for name in ("test", "val") if name in own), ALL)
        if split == ALL and "train" in own:
            from vitrine.errors import DataError

            raise DataError(
                f"{data} has only {' and '.join(own)}, which the model may have been trained on; "
                "name one with --split"
            )
    # A test set may well lack classes that the model knows; they are counted, not refused.
    return split, open_source(data, split=split, allow_empty_class=True)


def _matched(loaded: "Loaded", source: "Source", *, by_order: bool) -> "Source":
    from vitrine.evaluation.classification import in_model_classes
    from vitrine.runtime.progress import notice

    matched = in_model_classes(
        source, loaded.classes, num_outputs=loaded.model.config.num_classes, by_order=by_order
    )
    if loaded.classes is None and not by_order:
        notice("The model carries no class names: its outputs are taken in the order of the data's classes")
    return matched


def _real(file: Path | None, source: "Source", matched: "Source") -> list[list[int]] | None:
    from vitrine.evaluation.classification import in_model_numbers
    from vitrine.evaluation.real import read_real

    return None if file is None else in_model_numbers(read_real(file, source), source, matched)


def _folder(out: Path | None, source: "Source", *, overwrite: bool) -> Path:
    from vitrine.runtime.output_folder import new_output_folder

    roots = [source.root] if source.root is not None else []
    return new_output_folder(out, verb="evaluate", files=FILES, never_in=roots, is_overwriting=overwrite)


def _score(
    outputs: "Outputs", source: "Source", real: list[list[int]] | None, *, seed: int
) -> "SingleLabel | MultiLabel":
    from vitrine.errors import ConfigError
    from vitrine.evaluation.classification import score_multi_label, score_single_label

    keep = outputs.readable
    logits, labels = outputs.rows.numpy()[keep], source.labels[keep]
    if source.is_multi_label:
        if real is not None:
            raise ConfigError(f"--real goes with one label an image; {source.address} has several")
        return score_multi_label(logits, labels, classes=source.classes, seed=seed)
    kept = (
        None if real is None else [accepted for accepted, is_kept in zip(real, keep, strict=True) if is_kept]
    )
    return score_single_label(logits, labels, classes=source.classes, real=kept, seed=seed)


def _write(
    folder: Path,
    figures: "SingleLabel | MultiLabel",
    outputs: "Outputs",
    source: "Source",
    *,
    model: str,
    split: str,
) -> tuple[Path, ...]:
    from vitrine.evaluation.calibration import softmax
    from vitrine.evaluation.classification import SingleLabel
    from vitrine.evaluation.writing import write_confusion, write_metrics, write_predictions
    from vitrine.reports.evaluation_page import render_evaluation
    from vitrine.runtime.files import write_atomically
    from vitrine.spelling import printable

    rows = outputs.rows
    probabilities = rows.sigmoid().numpy() if source.is_multi_label else softmax(rows.numpy())
    wrote = [folder / "predictions.csv", folder / "metrics.json"]
    write_predictions(wrote[0], source, probabilities=probabilities, failures=outputs.failures)
    unreadable = {printable(source.name(index)): why for index, why in outputs.failures.items()}
    write_metrics(wrote[1], figures, model=model, data=source.address, split=split, unreadable=unreadable)
    if isinstance(figures, SingleLabel):
        wrote.append(folder / "confusion.csv")
        write_confusion(wrote[-1], figures)
    page = render_evaluation(
        figures, source=source, probabilities=probabilities, failures=outputs.failures, model=model
    )
    wrote.append(folder / "report.html")
    with write_atomically(wrote[-1], mode="w") as file:
        file.write(page)
    return tuple(wrote)


def _result(
    figures: "SingleLabel | MultiLabel",
    outputs: "Outputs",
    source: "Source",
    *,
    model: str,
    split: str,
    wrote: tuple[Path, ...],
    is_strict: bool,
) -> EvaluateResult:
    from vitrine.evaluation.classification import SingleLabel
    from vitrine.spelling import printable

    single = figures if isinstance(figures, SingleLabel) else None
    if isinstance(figures, SingleLabel):
        ranked = [(figure.name, figure.f1) for figure in figures.per_class]
    else:
        ranked = list(figures.average_precision.items())
    worst = sorted(
        ((printable(name), value) for name, value in ranked if value is not None), key=lambda item: item[1]
    )
    return EvaluateResult(
        model=model,
        data=printable(source.address),
        split=split,
        num_images=figures.num_images,
        unreadable={printable(source.name(index)): why for index, why in outputs.failures.items()},
        num_classes=len(source.classes),
        top1=single.top1 if single else None,
        top5=single.top5 if single else None,
        real=single.real if single else None,
        num_real_images=single.num_real_images if single else None,
        ece=single.calibration.ece if single else None,
        macro_f1=single.macro_f1 if single else None,
        mean_average_precision=None if isinstance(figures, SingleLabel) else figures.mean_average_precision,
        worst=tuple(worst[:MOST_WORST]),
        wrote=wrote,
        is_strict=is_strict,
    )
