"""`vitrine vtab`: the 19 tasks of VTAB-1k, from local files, one after the other."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_path, as_texts
from vitrine.commands.model_or_box import ModelOrBox, model_and_data

if TYPE_CHECKING:
    import torch

    from vitrine.data.preparing.preprocess import Preprocess
    from vitrine.data.sources.source import Source
    from vitrine.evaluation.metrics import Interval
    from vitrine.evaluation.vtab.protocol import Attempt, Protocol
    from vitrine.evaluation.vtab.scores import VtabScores
    from vitrine.recipes import Recipe
    from vitrine.runtime.processes import Processes


@dataclasses.dataclass(frozen=True, kw_only=True)
class VtabResult:
    """The scores and the files that hold them."""

    scores: "VtabScores"
    count: str
    """How many of the 19 tasks were run."""
    mean: float | None
    """Of all 19 tasks; None where one is missing."""
    group_means: dict[str, float | None]
    wrote: tuple[Path, ...]

    def __str__(self) -> str:
        lines = [str(self.scores), *(f"Wrote {path}" for path in self.wrote)]
        return "\n".join([*lines, f"Next: open {self.wrote[-1]}"] if self.wrote else lines)


@documented
def vtab(
    model: ModelOrBox = None,
    root: Annotated[str | Path | None, Doc("Folder with one folder per task")] = None,
    *,
    protocol: Annotated[
        Literal["vit", "lightweight"],
        Doc("vit is the paper's (2,500 steps, lr 0.01, batch 512, 384 px); lightweight sweeps four settings"),
    ] = "vit",
    tasks: Annotated[str | Sequence[str] | None, Doc("Only these tasks, separated by commas")] = None,
    out: Annotated[
        Path | str | None, Doc("Folder for the results; tasks with results there are skipped")
    ] = None,
    steps: Annotated[int | None, Doc("Steps per run [default: the protocol's]")] = None,
    batch_size: Annotated[int | None, Doc("Images per step [default: the protocol's]")] = None,
    size: Annotated[int | None, Doc("Image height and width in pixels [default: the protocol's]")] = None,
    device: options.Device = "auto",
    precision: Annotated[Literal["auto", "bf16", "fp32"], Doc("Number format of the computation")] = "auto",
    workers: options.Readers = 2,
    keep_models: Annotated[bool, Doc("Keep the weights of every run")] = False,
) -> VtabResult:
    """Fine-tune on each of VTAB's 19 tasks and evaluate on the whole test sets; missing tasks are listed."""
    root, out = None if root is None else Path(root), as_path(out)
    tasks = None if tasks is None else ",".join(as_texts(tasks))
    from vitrine.checkpoints import load
    from vitrine.data.sources.vtab.tasks import GROUPS, TASKS, find_task
    from vitrine.evaluation.features import weights_hash
    from vitrine.evaluation.vtab.protocol import run_vtab
    from vitrine.runs.run_start import exclusive
    from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
    from vitrine.runtime.processes import joined_processes, on_first_process
    from vitrine.runtime.run_folder import RunFolder

    model, address = model_and_data("vtab", model, root)
    root = Path(address)
    chosen = TASKS if tasks is None else tuple(find_task(name.strip()) for name in tasks.split(","))
    how = _protocol(protocol, steps=steps, batch_size=batch_size, size=size)
    identity = weights_hash(load(model).model)
    with joined_processes(device) as processes:
        # A dated name must be the same for all.
        folder = on_first_process(
            lambda: new_output_folder(out, verb="vtab", files=(), never_in=[root]), processes
        )
        with removed_if_empty(folder), exclusive(RunFolder(folder), processes):
            scores = run_vtab(
                root,
                fine_tune=_fine_tuner(
                    model,
                    processes=processes,
                    device=device,
                    precision=precision,
                    workers=workers,
                    keep=keep_models,
                ),
                measure=_measurer(processes.device, workers=workers),
                protocol=how,
                folder=folder,
                identity=identity,
                model=model,
                tasks=chosen,
                is_first=processes.is_first,
            )
            wrote = _write(folder, scores) if processes.is_first else ()
    return VtabResult(
        scores=scores,
        count=scores.count,
        mean=scores.mean,
        group_means={group: scores.group_mean(group) for group in GROUPS},
        wrote=wrote,
    )


def _protocol(
    name: Literal["vit", "lightweight"], *, steps: int | None, batch_size: int | None, size: int | None
) -> "Protocol":
    """Return the protocol, under a name that tells what was changed about it."""
    from vitrine.errors import ConfigError
    from vitrine.evaluation.vtab.protocol import PROTOCOLS

    changes: dict[str, Any] = {}
    words = []
    for key, word, value in (
        ("steps", "steps", steps),
        ("batch_size", "batch", batch_size),
        ("image_size", "size", size),
    ):
        if value is None:
            continue
        if value < 1:
            raise ConfigError(f"{word} must be 1 or more, got {value}")
        changes[key] = (value,) if key == "steps" else value
        words.append(f"{word} {value}")
    full = f"{name} with {', '.join(words)}" if words else name
    return dataclasses.replace(PROTOCOLS[name], name=full, **changes)


def _fine_tuner(
    model: str, *, processes: "Processes", device: str, precision: str, workers: int, keep: bool
) -> Any:
    def fine_tune(source: "Source", attempt: "Attempt", folder: Path) -> object:
        import shutil

        from vitrine.checkpoints import load
        from vitrine.runs.records import Execution, RunOutput, StartingModel
        from vitrine.runs.run_data import RunData
        from vitrine.runs.train_run import train_run
        from vitrine.runtime.devices import seeded
        from vitrine.runtime.processes import wait_for_all
        from vitrine.runtime.run_folder import RunFolder

        recipe = _recipe(attempt, model=model, precision=precision)
        with seeded(recipe.training.seed):  # a variant's name gives fresh weights
            fresh = load(model, num_classes=len(source.classes), image_size=attempt.image_size)
        # Straight to the square, nothing cut off: the label may sit in a corner.
        preprocess = dataclasses.replace(fresh.preprocess, rule="squash", crop_fraction=1.0)
        train_run(
            StartingModel(model=fresh.model, preprocess=preprocess),
            RunData(address=source.address, splits={"train": source}),
            recipe,
            execution=Execution(device=device, workers=workers),
            output=RunOutput(folder=RunFolder(folder), verb="vtab", reports=False),
        )
        trained = load(RunFolder(folder).model)
        wait_for_all(processes)
        if processes.is_first:
            shutil.rmtree(RunFolder(folder).checkpoints, ignore_errors=True)
            if not keep:
                shutil.rmtree(RunFolder(folder).model, ignore_errors=True)
        return trained

    return fine_tune


def _recipe(attempt: "Attempt", *, model: str, precision: str) -> "Recipe":
    from vitrine.recipes import Recipe
    from vitrine.recipes.recipe import Views
    from vitrine.training.config import TrainingConfig

    # The authors' rule for transfer: resize to 448, cut out 384.
    views = Views(crop="random", resize_size=round(attempt.image_size * 448 / 384), flip=attempt.may_flip)
    return Recipe(
        name="vtab",
        claim="one task of VTAB-1k",
        model=model,
        size=attempt.image_size,
        views=views if attempt.may_crop else Views(crop="none", flip=attempt.may_flip),
        training=TrainingConfig(
            optimizer="sgd",
            lr=attempt.lr,
            momentum=0.9,
            batch_size=attempt.batch_size,
            total_steps=attempt.steps,
            warmup_steps=attempt.warmup_steps,
            decay="cosine" if attempt.decay == "cosine" else "steps",
            boundaries=() if attempt.decay == "cosine" else (1 / 3, 2 / 3),
            clip_norm=1.0,
            precision=precision,  # type: ignore[arg-type]
        ),
    )


def _measurer(place: "torch.device", *, workers: int) -> Any:
    def measure(trained: Any, source: "Source") -> "Interval":
        from vitrine.errors import DataError
        from vitrine.evaluation.metrics import interval_of_share, top_k_correct
        from vitrine.evaluation.outputs import run_model

        preprocess: Preprocess = trained.preprocess
        outputs = run_model(
            trained.model.to(place),
            source,
            preprocess=preprocess,
            num_workers=workers,
            device=place,
            what="Testing",
        )
        if outputs.failures:
            raise DataError(
                f"VTAB tests on all images of {source.address}, of which {len(outputs.failures)} cannot be read; the "
                f"first: {next(iter(outputs.failures.values()))}"
            )
        return interval_of_share(top_k_correct(outputs.rows.numpy(), source.labels, k=1))

    return measure


def _write(folder: Path, scores: "VtabScores") -> tuple[Path, ...]:
    import importlib.util

    from vitrine.evaluation.vtab.figure import draw_figure
    from vitrine.evaluation.vtab.scores import table
    from vitrine.runtime.files import write_atomically
    from vitrine.runtime.progress import notice

    wrote = [folder / "vtab.md"]
    with write_atomically(wrote[0], mode="w") as file:
        file.write(table([scores]))
    if importlib.util.find_spec("matplotlib") is None:
        notice("No vtab.png: it needs matplotlib; install it with: pip install 'vitrine[report]'")
    else:
        wrote.append(folder / "vtab.png")
        draw_figure(wrote[1], scores)
    return tuple(wrote)
