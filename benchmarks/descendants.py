"""Prepare the study of ViT's descendants for a GPU that is available for minutes: small packs of data, and its speed.

    python benchmarks/descendants.py pack cifar10 packs/cifar10.tar          equal subsets, 37 MB each
    python benchmarks/descendants.py unpack packs/cifar10.tar sets/cifar10   on the machine with the GPU
    python benchmarks/descendants.py speed sets/cifar10 --scales little,small --at-once 4,8,12

`speed` trains every method for some steps through the loop of the study, alone and several at once: milliseconds per
step launched one by one, recorded as a CUDA graph, and compiled and recorded; memory, images per second of all
processes together, and minutes of the whole study. With `--mps` the processes share the GPU by NVIDIA's multi-process
service, if the machine has it. Then

    vitrine study descendants sets/cifar10,sets/cifar100,sets/tiny-imagenet --scale little --jobs 12
"""

import argparse
import dataclasses
import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
import traceback
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

from parts.subsets import pack, unpack

from vitrine.runtime.run_folder import RunFolder
from vitrine.studies.datasets import StudyData, make_arrays
from vitrine.studies.planning import Plan, make_plans
from vitrine.studies.record import Run
from vitrine.studies.registry import find_studies
from vitrine.studies.scales import find_scale
from vitrine.studies.training_runs import Place, carry_out_run

MPS_FOLDER = "/tmp/mps"
# Whether a step is recorded as a CUDA graph, and whether the model is compiled.
WAYS = {"launched": (False, False), "recorded": (True, False), "compiled": (True, True)}
DATA_SETS = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("data")
    packing.add_argument("file", type=Path)
    packing.add_argument(
        "--train", type=int, default=11_200, help="training images; a tenth of them is held out"
    )
    packing.add_argument("--test", type=int, default=6_000)
    unpacking = verbs.add_parser("unpack")
    unpacking.add_argument("file", type=Path)
    unpacking.add_argument("folder", type=Path)
    timing = verbs.add_parser("speed")
    timing.add_argument("data")
    timing.add_argument(
        "--scales", default="little", help="of all but the first, only recorded steps are timed, alone"
    )
    timing.add_argument("--steps", type=int, default=45)
    timing.add_argument("--at-once", default="4,8,12", help="numbers of processes")
    timing.add_argument(
        "--ways", default=",".join(WAYS), help="ways to take a step; not launched: several at once"
    )
    timing.add_argument("--mps", action="store_true", help="time several processes with MPS as well")
    timing.add_argument("--methods", type=int, help="time only this many methods")
    timing.add_argument("--device", default="cuda")
    timing.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.verb == "pack":
        pack(options.data, options.file, num_train=options.train, num_test=options.test)
        print(f"{options.file}: {options.file.stat().st_size / 1e6:.1f} MB")
    elif options.verb == "unpack":
        unpack(options.file, options.folder)
    else:
        with tempfile.TemporaryDirectory() as folder:
            print_speeds(options, Path(folder))


def print_speeds(options: Namespace, folder: Path) -> None:
    """Time steps alone, then several processes at once; print a line per measurement as it is made."""
    scales, ways, lines = options.scales.split(","), options.ways.split(","), []
    counts = [int(count) for count in options.at_once.split(",") if count]

    def write(line: dict[str, Any]) -> None:
        lines.append(line)
        print(json.dumps(line), flush=True)
        if options.out:
            options.out.write_text("".join(json.dumps(one) + "\n" for one in lines))

    with processes(1, options) as pool:
        for number, scale in enumerate(scales):
            for way in ways if not number else ways[-1:]:
                for line in alone(pool, scale, options, folder, way=way):
                    write(line)
    first = [line for line in lines if line["scale"] == scales[0]]
    for has_mps in (False, True) if options.mps else (False,):
        try:
            with mps(has_mps), processes(max(counts, default=1), options) as pool:
                for way, count in itertools.product([way for way in ways if way != "launched"], counts):
                    measured = together(pool, count, scales[0], options, folder, way=way)
                    write({**measured, "mps": has_mps, "gain": gain_of(measured["ms"], first)})
        except Exception as error:  # MPS may be forbidden in a container: the error is then the result
            write({"scale": scales[0], "mps": has_mps, "failed": last_line(error)})
    shares = [line["gain"] for line in lines if "gain" in line]
    for line in summary(first, scales[0], options, folder, gain=max([1.0, *shares])):
        write(line)


def alone(pool: Pool, scale: str, options: Namespace, folder: Path, *, way: str) -> Iterator[dict[str, Any]]:
    """Yield the speed of every method in one process."""
    plan = short_plan(scale, options, folder / scale)
    steps = max(options.steps // 2, 3) if way == "launched" else options.steps
    for run in methods_of(plan, options.methods):
        trial = Trial(run=run, data=plan.data, steps=steps, way=way, device=options.device)
        yield {"scale": scale, **pool.apply(timed, (trial,))}


def together(
    pool: Pool, count: int, scale: str, options: Namespace, folder: Path, *, way: str
) -> dict[str, Any]:
    """Return the speed of several processes, with the methods in turn."""
    plan = short_plan(scale, options, folder / scale)
    methods = [run for run in methods_of(plan, options.methods) if run.role != "preparation"]
    runs = [methods[number % len(methods)] for number in range(count)]
    trials = [
        Trial(
            run=run,
            data=plan.data,
            steps=2 * options.steps,
            way=way,
            device=options.device,
            jobs=count,
            place=place + 1,
        )
        for place, run in enumerate(runs)
    ]
    measured = pool.map_async(timed, trials, chunksize=1).get(timeout=240)
    good = [one for one in measured if "ms" in one]
    return {
        "scale": scale, "way": way, "at_once": count,
        "images_per_second": round(sum(one["images_per_second"] for one in good)),
        "gib": round(sum(one["gib"] or 0 for one in good), 1),
        "ms": [(one["method"], one["ms"]) for one in good],
        "failed": [one["failed"] for one in measured if "failed" in one],
    }  # fmt: skip


def gain_of(shared: Sequence[tuple[str, float]], alone: Sequence[dict[str, Any]]) -> float:
    """Return the speed of all processes in units of one that has the device for itself, its steps recorded."""
    ms = {line["method"]: line["ms"] for line in alone if line.get("way") == "recorded" and "ms" in line}
    return round(sum(ms[method] / own for method, own in shared if method in ms), 2)


def summary(
    lines: Sequence[dict[str, Any]], scale: str, options: Namespace, folder: Path, *, gain: float
) -> Iterator[dict[str, Any]]:
    """Yield the minutes of the whole study: steps times milliseconds, divided by the gain from sharing."""
    plan = short_plan(scale, options, folder / scale)
    ms = {line["method"]: line["ms"] for line in lines if line.get("way") == "recorded" and "ms" in line}
    full = plan.remake({run.settings["method"]: 1.0 for run in plan.runs}, {})
    seeds = max(run.seed for run in full.runs) + 1
    work = {"search": 0.0, "one data set": 0.0}
    for run in full.runs:
        part = "search" if run.role == "search" else "one data set"
        work[part] += run.recipe.training.total_steps * ms.get(run.settings["method"], 0.0) / 6e4
    total = (work["search"] + DATA_SETS * work["one data set"]) / max(gain, 0.1)
    yield {
        "scale": scale, "seeds": seeds, "gain": gain, "minutes": round(total, 1),
        **{f"minutes of {name}": round(value / max(gain, 0.1), 1) for name, value in work.items()},
    }  # fmt: skip


def short_plan(scale: str, options: Namespace, out: Path) -> Plan:
    """Return the plan of the study on the data, its arrays written."""
    (plan,) = make_plans(
        find_studies("descendants"), find_scale(scale), data=options.data, target=None, seeds=None, out=out,
        compiles=False,
    )  # fmt: skip
    make_arrays(plan.data["data"], {run.model.image_size[0] for run in plan.runs}, workers=1)
    return plan


def methods_of(plan: Plan, count: int | None) -> list[Run]:
    """Return one run of every method, or of the first, the teacher before all others."""
    first = {run.settings["method"]: run for run in reversed(plan.runs) if run.seed == 0}
    return sorted(first.values(), key=lambda run: run.role != "preparation")[:count]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """Some steps of one run."""

    run: Run
    data: Mapping[str, StudyData]
    steps: int
    way: str
    device: str
    jobs: int = 1
    place: int = 0


def timed(trial: Trial) -> dict[str, Any]:
    """Train some steps as the study does; read the speed of the last ones from the metrics."""
    run, steps, (graphs, compiles) = trial.run, trial.steps, WAYS[trial.way]
    assert run.folder is not None
    method = run.settings["method"]
    training = dataclasses.replace(
        run.recipe.training, total_steps=steps, warmup_steps=0, log_every=max(steps // 3, 1), graphs=graphs,
        compile=compiles, checkpoint_every=steps,
    )  # fmt: skip
    folder = (
        run.folder
        if run.role == "preparation"
        else run.folder.with_name(f"{run.name}-{trial.way}-{trial.place}")
    )
    shutil.rmtree(folder, ignore_errors=True)
    short = dataclasses.replace(run, folder=folder, recipe=dataclasses.replace(run.recipe, training=training))
    try:
        began = time.monotonic()
        outcome = carry_out_run(short, Place(sets={run.on: trial.data}, device=trial.device, jobs=trial.jobs))
        seconds = time.monotonic() - began
        records = [json.loads(line) for line in RunFolder(folder).metrics_file.read_text().splitlines()]
    except Exception as error:
        return {"method": method, "way": trial.way, "failed": last_line(error)}
    last = [record for record in records if "images_per_second" in record][-1]
    ms = 1000 * training.batch_size / last["images_per_second"]
    return {
        "method": method, "way": trial.way, "ms": round(ms, 2), "gib": last.get("memory_gib"),
        "images_per_second": round(last["images_per_second"]), "seconds": round(seconds, 1),
        "launched": outcome["launched"],
    }  # fmt: skip


@contextmanager
def processes(count: int, options: Namespace) -> Iterator[Pool]:
    """Start processes that live as long as the block."""
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        yield pool


@contextmanager
def mps(is_wanted: bool) -> Iterator[None]:
    """Start NVIDIA's multi-process service for processes that begin inside the block."""
    if not is_wanted:
        yield
        return
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = MPS_FOLDER
    Path(MPS_FOLDER).mkdir(exist_ok=True)
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
    try:
        yield
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False)
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            os.environ.pop(name)


def last_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return traceback.format_exception_only(error)[-1].strip()[:300]


if __name__ == "__main__":
    main()
