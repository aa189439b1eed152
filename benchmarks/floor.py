"""Measure a table of speeds on one GPU, each case against timm compiled in turns, and print it beside its goals.

    PYTHONPATH=src python benchmarks/floor.py --out floor                      7 to 9 minutes on an H200
    PYTHONPATH=src python benchmarks/floor.py --out floor --cases l16,h14      some of the cases

Every case is a command of this folder (`--list` prints them) in a process of its own; within it ours and timm's take
turns. First all of them run, `--jobs` at a time and not timed, to fill the compiler's cache, which is kept under
`--out`. Then each runs alone. A case that fails or exceeds its time is reported, and the others go on; `--out`
keeps each case's figures and log.

    PYTHONPATH=src python benchmarks/floor.py --out DIR --toy                  the same on a CPU in seconds
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
Figures = Any
STEP = "train_step.py --rounds 3 --repeats 8"
TOY = "--device cpu --model ViT-Ti/16 --size 32 --no-compile --repeats 1"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command, the same at toy size, and how to read the ratios of the table from its figures."""

    command: str
    toy: str
    goals: dict[str, float]
    """What is compared, and the goal: times timm compiled, unless the name says otherwise."""
    ratio: Callable[[Figures, str], float]
    seconds: int = 150


def of_step(figures: Figures, name: str) -> float:
    """Return how many times timm's step the best of ours in a precision is, launched or recorded."""
    wanted = "vitrine, fp8" if "fp8" in name else "vitrine, kernels"
    ratios = figures.get("times_timm_compiled") or figures["times_timm_eager"]
    own = [ratio for key, ratio in ratios.items() if key.startswith((wanted, "vitrine, plain"))]
    return float(max(own))


def of_inference(figures: Figures, name: str) -> float:
    """Return how many times timm's rate ours is; for one image the milliseconds."""
    wanted = "vitrine, fp8" if "fp8" in name else "vitrine"
    batches = {int(key.split()[1]): rows for key, rows in figures.items() if key.startswith("batch")}
    rows = batches[min(batches) if "ms" in name else max(batches)]
    row = rows.get(wanted, rows["vitrine"])
    return float(row["milliseconds"] if "ms" in name else row["times_timm"])


def of_masked(figures: Figures, name: str) -> float:
    """Return the masked autoencoder's step as a fraction of a classifier's."""
    return next(float(row["of_plain_step"]) for row in figures if row["case"] == "step, autoencoder")


def of_files(figures: Figures, name: str) -> float:
    """Return the rate from files as a fraction of that of synthetic batches; on a CPU, of timm's loader."""
    if "shares of synthetic" in figures:
        return float(max(sum(own) / len(own) for own in figures["shares of synthetic"].values()))
    rates = next(iter(figures.values()))["images/s"]
    return float(max(rates["vitrine"]) / max(rates["timm"]))


def step_case(options: str, goals: dict[str, float], *, seconds: int = 150) -> Case:
    return Case(
        command=f"{STEP} {options}",
        toy=f"train_step.py {TOY} --batch-size 2 --ours plain",
        goals=goals,
        ratio=of_step,
        seconds=seconds,
    )


CASES = {
    "b16": step_case("--model ViT-B/16 --ours kernels,fp8", {"bf16": 1.45, "fp8": 1.9}),
    "l16": step_case("--model ViT-L/16 --batch-size 128 --ours kernels,fp8", {"bf16": 1.45, "fp8": 1.7}),
    "h14": step_case("--model ViT-H/14 --batch-size 64 --ours kernels,fp8", {"bf16": 1.45, "fp8": 1.7}),
    "b16-384": step_case("--model ViT-B/16 --size 384 --batch-size 64 --ours kernels", {"bf16": 1.4}),
    "l14-518": step_case("--model ViT-L/14 --size 518 --batch-size 16 --ours kernels", {"bf16": 1.4}),
    "inference": Case(
        command="inference.py --model ViT-B/16 --batches 1,256 --rounds 4",
        toy=f"inference.py {TOY} --batches 1,2",
        goals={"bf16": 1.5, "fp8": 1.9, "one image, ms": 0.35}, ratio=of_inference,
    ),
    "mae": Case(
        command="masked.py --device cuda --compile --model ViT-B/16 --batch-size 256 --only step",
        toy="masked.py --model ViT-Ti/16 --size 32 --batch-size 1 --only step",
        goals={"of a plain step": 0.35}, ratio=of_masked,
    ),
    "files": Case(
        command="data.py --cuda --compile --precision fp8 --cells 15:0",
        toy="data.py --count 12 --size 32 --batch 4 --workers 0",
        goals={"of synthetic, fp8": 0.95}, ratio=of_files,
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of figures, logs and the compiler's cache"
    )
    parser.add_argument("--cases", default=",".join(CASES), help="some of them, by comma")
    parser.add_argument("--jobs", type=int, default=3, help="cases that fill the cache at once")
    parser.add_argument("--warm-up", default=True, action=argparse.BooleanOptionalAction)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--list", action="store_true", help="print the commands and end")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = {name: CASES[name] for name in options.cases.split(",")}
    if options.list:
        print("\n".join(f"python benchmarks/{case.command}" for case in chosen.values()))
        return
    if options.warm_up:
        with ThreadPoolExecutor(options.jobs) as pool:
            # The files of JPEGs keep all cores busy and compile one model only, that of b16.
            names = [name for name in chosen if name != "files"]
            list(pool.map(lambda name: run(name, chosen[name], options, is_timed=False), names))
    for name, case in chosen.items():
        report(name, case, run(name, case, options, is_timed=True))


def run(name: str, case: Case, options: argparse.Namespace, *, is_timed: bool) -> Figures:
    """Run a case; return its figures, or None if it failed or took too long."""
    file, log = options.out / f"{name}.json", options.out / f"{name}{'' if is_timed else '.warm-up'}.log"
    words = [*(case.toy if options.toy else case.command).split(), "--out", str(file)]
    if options.toy or not is_timed:
        words += ["--rounds", "1"]
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as text:
        try:
            code = subprocess.run(
                [sys.executable, str(FOLDER / words[0]), *words[1:]], stdout=text, stderr=subprocess.STDOUT,
                env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(options.out / "compiled")},
                timeout=case.seconds, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = f"none after {case.seconds} s"
    kind = "timed" if is_timed else "cache filled"
    print(f"{name}: {kind} in {time.monotonic() - began:.0f} s, exit code {code}", flush=True)
    return json.loads(file.read_text()) if code == 0 else None


def report(name: str, case: Case, figures: Figures) -> None:
    """Print a row of the table for each goal."""
    for what, goal in case.goals.items():
        reached = "failed" if figures is None else f"{case.ratio(figures, what):.3f}"
        print(f"| {name} | {what} | {reached} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
