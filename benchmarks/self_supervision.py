"""Measure what pre-training without labels gains on CIFAR-10: one model, one fine-tuning budget, several seeds.

    PYTHONPATH=src python benchmarks/self_supervision.py --data /tmp/cifar --device cuda --out /tmp/table \
        --pretrain-minutes 4 --tune-minutes 1 --seeds 3 --jobs 3

`--data` is CIFAR-10 in its binary layout. Every row pre-trains on the training images (2 % are held out to evaluate
the representation), then fine-tunes on all 50,000 with labels and is tested once, at the end; `scratch` fine-tunes
fresh weights in the same way. A short trial of every stage converts minutes to epochs, so that all seeds share a
schedule; `--pretrain-epochs` and `--tune-epochs` set them directly. GPU minutes are wall-clock minutes of training
steps divided by the number of jobs that share the GPU. Stages with a line in `results.jsonl` are skipped, and stopped
runs are resumed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import yaml

import vitrine
from vitrine.checkpoints import save
from vitrine.models import create_model

MODEL: dict[str, Any] = {
    "width": 256, "depth": 8, "num_heads": 4, "mlp_width": 1024, "patch_size": 4, "pooling": "average",
    "positions": "learned_1d", "qk_norm": True, "stochastic_depth": 0.1,
}  # fmt: skip
TINY = {**MODEL, "width": 32, "depth": 1, "num_heads": 2, "mlp_width": 32, "patch_size": 8}
TRAINING = {
    "optimizer": "adamw",
    "weight_decay": 0.05,
    "decay": "cosine",
    "clip_norm": 1.0,
    "warmup_steps": 500,
}
TUNING = {
    "optimizer": "adamw",
    "lr": 1e-3,
    "weight_decay": 0.05,
    "warmup_steps": 200,
    "checkpoint_every": 2000,
}
MASKED = {"batch_size": 1024, "lr": 1e-3, **TRAINING}
# Pre-training of each row. Views are CIFAR's usual shift and flip, except for the objective with its own crops.
METHODS: dict[str, dict[str, Any]] = {
    "scratch": {},
    **{
        f"masked-patches, {target}": {"objective": "masked-patches", "target": target, "training": MASKED}
        for target in ("mean-color", "downsized-colors", "pixels")
    },
    "autoencoder": {
        "objective": "autoencoder",
        "training": {**MASKED, "lr": 1.5e-3, "betas": [0.9, 0.95]},
        "settings": {
            "objective.decoder_width": 128, "objective.decoder_depth": 2, "objective.decoder_heads": 4,
        },
    },
    "dino": {
        "objective": "dino",
        "training": {**MASKED, "batch_size": 512, "clip_norm": 3.0},
        "settings": {
            "objective.num_prototypes": 4096, "objective.hidden_width": 1024,
            "objective.momentum": 0.996, "objective.multi_crop.num_local": 6, "objective.multi_crop.local_size": 16,
            "objective.multi_crop.global_area": [0.3, 1.0], "objective.multi_crop.local_area": [0.08, 0.4],
            "views.crop": "none", "views.flip": False,
        },
    },
}  # fmt: skip
HELD_OUT = 0.02
TRIAL_STEPS, TRIAL_LOG = 120, 30
NUM_TRAINING = 50_000


def main() -> None:
    options = read_options()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.job:
        print(json.dumps(carry_out(json.loads(options.job), options)))
        return
    methods = [name for name in METHODS if options.methods is None or name in options.methods.split(";")]
    if options.pretrain_minutes or options.tune_minutes:
        trials = [{"stage": "trial", "method": name, "seed": 0} for name in methods]
        run_all(trials, options)
    wanted = [
        {"stage": stage, "method": name, "seed": seed}
        for seed in range(options.seeds)
        for stage in ("pretrain", "tune")
        for name in methods
        if (stage, name) != ("pretrain", "scratch")
    ]
    # Fine-tuning waits for all pre-training of its seed, so that every job shares the GPU with equally many others.
    for seed in range(options.seeds):
        for stage in ("pretrain", "tune"):
            run_all([job for job in wanted if (job["seed"], job["stage"]) == (seed, stage)], options)
            print(table(options, methods), flush=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", help="some of the rows, separated by semicolons")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes that share the device; 0: none but this one"
    )
    parser.add_argument("--pretrain-minutes", type=float)
    parser.add_argument("--tune-minutes", type=float)
    parser.add_argument("--pretrain-epochs", type=float, default=200)
    parser.add_argument("--tune-epochs", type=float, default=30)
    parser.add_argument("--pretrain-set", action="append", default=[], help="a setting for all pre-training")
    parser.add_argument("--tune-set", action="append", default=[], help="a setting for all fine-tuning")
    parser.add_argument(
        "--tiny", action="store_true", help="a toy model and small batches, only to show that it runs"
    )
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_all(jobs: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Run jobs that have no result yet, several at a time, each in its own process."""
    left = [job for job in jobs if result_of(job, options) is None]
    if options.jobs == 0:
        for job in left:
            keep(json.dumps(carry_out(job, options)), options)
        return
    running: list[tuple[dict[str, Any], subprocess.Popen[str]]] = []
    while left or running:
        while left and len(running) < options.jobs:
            job = left.pop(0)
            command = [sys.executable, __file__, *sys.argv[1:], "--job", json.dumps(job)]
            running.append((job, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
            print("began", job, flush=True)
        for job, process in [pair for pair in running if pair[1].poll() is not None]:
            running.remove((job, process))
            said = process.stdout.read() if process.stdout else ""
            if process.returncode:
                print("failed", job, process.returncode, said[-2000:], flush=True)
                continue
            keep(said.splitlines()[-1], options)
        time.sleep(0.2)


def keep(line: str, options: argparse.Namespace) -> None:
    """Add one job's result to the file of results."""
    with (options.out / "results.jsonl").open("a") as file:
        file.write(line + "\n")
    print("done", line, flush=True)


def results(options: argparse.Namespace) -> list[dict[str, Any]]:
    path = options.out / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def result_of(job: dict[str, Any], options: argparse.Namespace) -> dict[str, Any] | None:
    return next((line for line in results(options) if job.items() <= line.items()), None)


def carry_out(job: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Run one stage of one row; return its result."""
    name, seed = job["method"], job["seed"]
    place = options.out / name.replace(", ", "-") / f"seed-{seed}"
    if job["stage"] == "trial":
        if name == "scratch":
            tune(fresh(place, seed, options), place / "trial", seed, options, steps=TRIAL_STEPS)
        else:
            pretrain(name, place / "trial", seed, options, steps=TRIAL_STEPS)
        logged = [r for r in records(place / "trial") if "images_per_second" in r]
        return {
            **job,
            "images_per_second": logged[-1]["images_per_second"],
        }  # of the last steps, after compilation
    if job["stage"] == "pretrain":
        pretrain(name, place / "pretrain", seed, options, epochs=epochs_of(job, options))
        judged = [r for r in records(place / "pretrain") if "val_loss" in r][-1]
        return {**job, **spent(place / "pretrain", options), "evaluation": judged}
    model = fresh(place, seed, options) if name == "scratch" else place / "pretrain"
    tune(model, place / "tune", seed, options, epochs=epochs_of(job, options))
    tested = vitrine.evaluate(
        str(place / "tune"),
        options.data,
        split="test",
        out=place / "test",
        overwrite=True,
        device=options.device,
    )
    assert tested.top1 is not None
    return {**job, **spent(place / "tune", options), "accuracy": tested.top1.value}


def spent(run: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return steps and minutes of a run from its log, also if it was stopped and resumed; without evaluation."""
    batch = yaml.safe_load((run / "config.yaml").read_text())["training"]["batch_size"]
    logged = [r for r in records(run) if "images_per_second" in r]
    steps = [0, *(r["step"] for r in logged)]
    seconds = sum(
        (after - before) * batch / r["images_per_second"]
        for before, after, r in zip(steps, steps[1:], logged, strict=False)
    )
    return {"steps": steps[-1], "gpu_minutes": round(seconds / 60 / max(options.jobs, 1), 3)}


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def epochs_of(job: dict[str, Any], options: argparse.Namespace) -> float:
    """Return the epochs of a stage: as given, or as many as fit into its minutes at the trial's rate."""
    stage = job["stage"]
    minutes = options.pretrain_minutes if stage == "pretrain" else options.tune_minutes
    if not minutes:
        return options.pretrain_epochs if stage == "pretrain" else options.tune_epochs
    method = job["method"] if stage == "pretrain" else "scratch"
    trial = result_of({"stage": "trial", "method": method}, options)
    if trial is None:
        raise SystemExit(f"there is no trial of {method} in {options.out}/results.jsonl; add it to --methods")
    return max(round(60 * minutes * trial["images_per_second"] / NUM_TRAINING), 1)


def model_options(options: argparse.Namespace) -> dict[str, Any]:
    return TINY if options.tiny else MODEL


def fresh(place: Path, seed: int, options: argparse.Namespace) -> Path:
    """Save random weights, the start of scratch."""
    if not (place / "fresh").exists():
        torch.manual_seed(seed)
        model = create_model("ViT", num_classes=None, image_size=32, **model_options(options))
        save(model.eval(), place / "fresh")
    return place / "fresh"


def pretrain(name: str, out: Path, seed: int, options: argparse.Namespace, **length: Any) -> None:
    method = METHODS[name]
    settings = {f"model_options.{key}": value for key, value in model_options(options).items()}
    settings |= {f"training.{key}": value for key, value in method["training"].items()}
    settings |= method.get("settings", {})
    if options.tiny:
        settings["training.batch_size"] = 16
        if method["objective"] == "dino":
            settings |= {"objective.num_prototypes": 32, "objective.hidden_width": 32}
    settings["training.compile"] = settings["training.graphs"] = options.device.startswith("cuda")
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()] + options.pretrain_set
    if goes_on(out):
        return
    vitrine.pretrain(
        options.data, recipe="demo", objective=method["objective"], target=method.get("target"), out=out,
        overwrite=out.exists(), seed=seed, hold_out=HELD_OUT, device=options.device, workers=2, set=overrides,
        log_every=log_every(length), checkpoint_every=2000, evaluate_every=evaluate_every(length), **length,
    )  # fmt: skip


def tune(model: Path, out: Path, seed: int, options: argparse.Namespace, **length: Any) -> None:
    small = ["training.batch_size=16", "training.compile=false"] if options.tiny else []
    # AdamW for all rows: Muon's large steps, made for random matrices, would erase the pre-training.
    overrides = [f"training.{key}={json.dumps(value)}" for key, value in TUNING.items()]
    overrides += [*small, *options.tune_set]
    if goes_on(out):
        return
    vitrine.finetune(
        options.data, model=str(model), recipe="cifar10", out=out, overwrite=out.exists(), seed=seed, hold_out=0,
        device=options.device, workers=2, set=overrides, log_every=log_every(length), **length,
    )  # fmt: skip


def goes_on(out: Path) -> bool:
    """Resume a stopped run, if there is one; return whether there was."""
    if (out / "model").exists():
        return True
    if not (out / "checkpoints" / "last.safetensors").exists():
        return False
    vitrine.resume(out)
    return True


def log_every(length: dict[str, Any]) -> int:
    return TRIAL_LOG if "steps" in length else 200


def evaluate_every(length: dict[str, Any]) -> int | None:
    return None if "steps" in length else 2000


def table(options: argparse.Namespace, methods: list[str]) -> str:
    """Return the results so far as a table in Markdown."""
    kept = results(options)
    lines = [
        "| pre-training | seeds | accuracy after fine-tuning | nearest neighbours before | steps | GPU minutes |",
        "|---|---|---|---|---|---|",
    ]
    for name in methods:
        before = [r for r in kept if r["method"] == name and r["stage"] == "pretrain"]
        after = [r for r in kept if r["method"] == name and r["stage"] == "tune"]
        if not after and not before:
            continue
        minutes = sum(r["gpu_minutes"] for r in before) / max(len(before), 1)
        minutes += sum(r["gpu_minutes"] for r in after) / max(len(after), 1)
        steps = " + ".join(f"{r['steps']:,}" for r in (*before[:1], *after[:1]))
        accuracy = shown([r["accuracy"] for r in after])
        neighbours = shown([r["evaluation"]["val_knn_accuracy"] for r in before])
        lines.append(f"| {name} | {len(after)} | {accuracy} | {neighbours} | {steps} | {minutes:.1f} |")
    return "\n".join(lines)


def shown(shares: list[float]) -> str:
    if not shares:
        return ""
    spread = f" ± {100 * statistics.stdev(shares):.2f}" if len(shares) > 1 else ""
    return f"{100 * statistics.mean(shares):.2f}{spread} %"


if __name__ == "__main__":
    main()
