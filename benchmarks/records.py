"""Measure a track of docs/records.md: CIFAR-10 from scratch with a plain ViT, seconds of the whole command.

    python benchmarks/records.py estimate                  seconds of every track, by the recorded rate of an H200
    python benchmarks/records.py search CIFAR10 benchmarks/parts/record_candidates.txt --out runs/search
    python benchmarks/records.py run 94 CIFAR10 --seeds 5 --out runs/94
    python benchmarks/records.py table                     the table of docs/records.md, from docs/records/*.json

`run` first trains for a few steps, so that the compile cache is warm, then seed 0 alone, by the clock from the start
of the command to its end, then the other seeds, `--at-once` of them at a time: only runs alone are timed. Every model
is evaluated once on the test images, by one view and by six. The same command again continues with the seeds that are
missing. RECORD.json in the output folder belongs into docs/records/. `search` trains each line of a file (a name, a
recipe, its settings) with one seed.
"""

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from parts.ledger import TRACKS, read_measurements, table, thinned_curve

from vitrine.models import configure
from vitrine.models.cost import cost_of
from vitrine.recipes import find_recipe
from vitrine.runs.phases import mean_cost

KEPT = Path(__file__).parents[1] / "docs" / "records"
# Images per second of a recorded step of the cifar10 recipe on an H200 (docs/performance.md), its model's width and
# depth, and the seconds of a warm command beside its steps (docs/experiments.md, CIFAR-10).
RATE, RATED_RECIPE, OTHER_SECONDS = 68_458, "cifar10", 30
NUM_IMAGES = 50_000
# Enough for every phase to be compiled and recorded.
WARM_UP_STEPS = 60


def main() -> None:
    options = read_options()
    if options.verb == "estimate":
        print("\n".join(estimates()))
    elif options.verb == "table":
        print(table(read_measurements(options.folder)), end="")
    elif options.verb == "search":
        search(options)
    else:
        measure(options)


def read_options() -> Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("estimate")
    verbs.add_parser("table").add_argument("--folder", type=Path, default=KEPT)
    running, searching = verbs.add_parser("run"), verbs.add_parser("search")
    running.add_argument("track", type=int, choices=TRACKS)
    for one in (running, searching):
        one.add_argument("data")
        one.add_argument("--out", type=Path, required=True)
        one.add_argument("--set", action="append", default=[], help="a setting of the recipe")
        one.add_argument("--steps", type=int, help="only so many steps, to try the command")
        one.add_argument("--device", default="cuda")
        one.add_argument("--no-warm-up", action="store_true", help="the compile cache is warm already")
    searching.add_argument("candidates", type=Path)
    running.add_argument(
        "--at-once", type=int, default=1, help="seeds that share the device, never the first"
    )
    running.add_argument("--recipe", help="another recipe than that of the track")
    running.add_argument("--seeds", type=int, default=5)
    running.add_argument("--change", default="first measurement", help="what changed since the last record")
    running.add_argument("--commit", help="the commit, where git cannot say it")
    return parser.parse_args()


def estimates() -> list[str]:
    """Return a line per track: epochs, cost of a step, seconds of steps and of the whole command."""
    rated = find_recipe(RATED_RECIPE)
    rated_macs = macs_of(rated)
    lines = []
    for track in TRACKS:
        recipe = find_recipe(f"cifar10-{track}").with_steps_for(NUM_IMAGES)
        config = configure(recipe.model or "", image_size=recipe.size, **recipe.model_options)
        share = mean_cost(config, recipe, done=0)
        images = recipe.training.total_steps * recipe.training.batch_size
        seconds = images * share * macs_of(recipe) / rated_macs / RATE
        lines.append(
            f"{track} %: {recipe.epochs:g} epochs, {recipe.training.total_steps:,} steps at {share:.2f} of a whole "
            f"one: {seconds:.0f} s of steps, {seconds + OTHER_SECONDS:.0f} s for the command"
        )
    return lines


def macs_of(recipe: Any) -> int:
    """Count the multiply-adds of a recipe's model."""
    return cost_of(configure(recipe.model or "", image_size=recipe.size, **recipe.model_options)).macs


def training_command(options: Namespace, recipe: str, settings: list[str], seed: int, run: Path) -> list[str]:
    """Return the command whose time counts."""
    words = [
        *("pretrain", options.data, "--recipe", recipe, "--hold-out", "0", "--seed", str(seed)),
        *("--device", options.device, "--out", str(run), "--overwrite"),
    ]
    for setting in [*options.set, *settings]:
        words += ["--set", setting]
    return words if options.steps is None else [*words, "--steps", str(options.steps)]


def start(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command of vitrine in a process of its own."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        return subprocess.Popen([sys.executable, "-m", "vitrine", *words], stdout=file, stderr=file)


def finish(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a command; a failed one ends the benchmark with its last words."""
    if process.wait() != 0:
        raise SystemExit("\n".join(log.read_text(errors="replace").splitlines()[-20:]))


def warm_up(options: Namespace, recipe: str, settings: list[str]) -> None:
    """Train for a few steps, so that all phases are compiled before the clock starts."""
    short = Namespace(**{**vars(options), "steps": options.steps or WARM_UP_STEPS})
    log = options.out / "warm-up.log"
    finish(start(training_command(short, recipe, settings, 0, options.out / "warm-up"), log), log)
    shutil.rmtree(options.out / "warm-up")


def train_some(
    options: Namespace, recipe: str, settings: list[str], runs: dict[int, Path]
) -> dict[int, float]:
    """Train these seeds at the same time; return the seconds from start to end of each command."""
    began = time.monotonic()
    left = {}
    for seed, run in runs.items():
        log = run.with_suffix(".log")
        left[seed] = (start(training_command(options, recipe, settings, seed, run), log), log)
    seconds: dict[int, float] = {}
    while left:
        for seed, (process, log) in list(left.items()):
            if process.poll() is not None:
                finish(process, log)
                seconds[seed] = round(time.monotonic() - began, 1)
                del left[seed]
        time.sleep(0.02)
    return seconds


def evaluated(options: Namespace, run: Path) -> dict[str, float | None]:
    """Evaluate a model on the test images, by one view and by six."""
    words = [
        *("evaluate", str(run), options.data, "--split", "test", "--views", "flip-shift", "--json"),
        *("--device", options.device, "--out", str(run / "test"), "--overwrite"),
    ]
    done = subprocess.run([sys.executable, "-m", "vitrine", *words], stdout=subprocess.PIPE, check=True)
    figures = json.loads(done.stdout)
    return {"top1": figures["top1"]["value"], "top1_views": figures["top1_views"]["value"]}


def measure(options: Namespace) -> None:
    """Run the seeds of a track that have no result yet, write the measurement after each, and print its row."""
    recipe = options.recipe or f"cifar10-{options.track}"
    file = options.out / "RECORD.json"
    measurement = begun(options, recipe)
    if file.exists():
        kept = json.loads(file.read_text())
        if any(kept[name] != measurement[name] for name in ("command", "commit")):
            raise SystemExit(f"{file} is of {kept['command']} in {kept['commit']}; choose another --out")
        measurement = kept
    done = {run["seed"] for run in measurement["runs"]}
    left = [seed for seed in range(options.seeds) if seed not in done]
    if left and not options.no_warm_up:
        warm_up(options, recipe, [])
    num_alone = 1 if 0 in left else 0  # the first seed is timed
    others = left[num_alone:]
    groups = [others[n : n + options.at_once] for n in range(0, len(others), options.at_once)]
    for group in [left[:num_alone], *groups] if num_alone else groups:
        runs = {seed: options.out / f"seed-{seed}" for seed in group}
        seconds = train_some(options, recipe, [], runs)
        for seed, run in runs.items():
            measurement["runs"].append(
                {"seed": seed, **evaluated(options, run), "seconds": seconds[seed], "was_alone": len(group) == 1,
                 "was_warm": True, "curve": thinned_curve(run)}
            )  # fmt: skip
        file.write_text(json.dumps(measurement, indent=1) + "\n")
        print(table([measurement]), flush=True)


def begun(options: Namespace, recipe: str) -> dict[str, Any]:
    """Return a measurement without runs."""
    words = training_command(options, recipe, [], 0, Path("RUN"))
    words[words.index("--seed") + 1] = "SEED"
    return {
        "track": options.track, "recipe": recipe, "command": f"vitrine {' '.join(words)}", "change": options.change,
        "date": datetime.date.today().isoformat(), "commit": options.commit or commit(),
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device, "runs": [],
    }  # fmt: skip


def search(options: Namespace) -> None:
    """Train every candidate with one seed and print them by test accuracy, best first."""
    lines = [line.split() for line in options.candidates.read_text().splitlines()]
    results: list[tuple[float, str]] = []
    for name, recipe, *settings in (line for line in lines if line and not line[0].startswith("#")):
        if not options.no_warm_up:
            warm_up(options, recipe, settings)
        run = options.out / name
        seconds = train_some(options, recipe, settings, {0: run})[0]
        figures = evaluated(options, run)
        shown = {key: f"{100 * value:.2f} %" for key, value in figures.items() if value is not None}
        results.append(
            (figures["top1"] or 0, f"{name}: {shown}, {seconds:.0f} s, {' '.join([recipe, *settings])}")
        )
        print("\n".join(text for _, text in sorted(results, reverse=True)), flush=True)


def commit() -> str:
    """Return the short name of the commit that is checked out."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit("git cannot name the commit here; use --commit")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
