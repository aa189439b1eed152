"""`vitrine vtab`: the 19 tasks of VTAB-1k, from local files, one after the other."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_model, as_path, as_texts
from vitrine.errors import ConfigError

if TYPE_CHECKING:
    from vitrine.jobs.vtab import VtabResult


@documented
def vtab(
    model: options.ModelOrBox = None,
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
) -> "VtabResult":
    """Fine-tune on each of VTAB's 19 tasks and evaluate on the whole test sets; missing tasks are listed."""
    for option, value in (("steps", steps), ("batch_size", batch_size), ("size", size)):
        if value is not None and value < 1:
            raise ConfigError(f"must be at least 1, got {value}", option=option)

    from vitrine.jobs.vtab import run_tasks

    return run_tasks(
        as_model(model),
        None if root is None else str(root),
        protocol=protocol,
        tasks=None if tasks is None else ",".join(as_texts(tasks)),
        out=as_path(out),
        steps=steps,
        batch_size=batch_size,
        image_size=size,
        device=device,
        precision=precision,
        workers=workers,
        keeps_models=keep_models,
    )
