"""Time inference, training and start-up on a CPU against peers, in turns.

    python benchmarks/cpu.py infer --model ViT-B/16 --batches 1,8
    python benchmarks/cpu.py train --model ViT-Ti/16 --batch-size 16
    python benchmarks/cpu.py start

`infer` runs our ONNX export and timm's (torch.onnx of its model with the same settings) in onnxruntime and, where
installed, in OpenVINO, and timm's model under torch.compile. `train` takes one step of each model: forward, backward,
clip at 1, AdamW. Every contestant runs once per round, in rotating order; the figure that counts is the median over
the rounds of the ratio to a peer. Processor time is printed next to wall-clock time: on a busy machine only the
former is reproducible.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrine.checkpoints import Record
from vitrine.checkpoints.libraries import import_installed
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.exporting import InferenceModel
from vitrine.exporting.onnx_graph import OPSET, quietly, write_onnx
from vitrine.models import create_model
from vitrine.models.kernels import use_kernels

TIMM = {
    "ViT-Ti/16": "vit_tiny_patch16_224",
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/16": "vit_base_patch16_224",
    "ViT-L/16": "vit_large_patch16_224",
}
Run = Callable[[], object]


def race(runs: dict[str, Run], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Time all contestants in every round: (wall time, CPU time) in seconds."""
    for run in runs.values():
        run()
        run()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            clock, processor = time.perf_counter(), time.process_time()
            runs[name]()
            times[name].append((time.perf_counter() - clock, time.process_time() - processor))
    return times


def told(times: dict[str, list[tuple[float, float]]], *, peer: str) -> dict[str, dict[str, float]]:
    """Print for each: best and median times in ms, and the median ratio to a peer (below 1: faster)."""
    rows = {}
    for name, own_times in times.items():
        row = {}
        for column, kind in enumerate(("clock", "processor")):
            own, theirs = [t[column] for t in own_times], [t[column] for t in times[peer]]
            row[f"{kind}_best_ms"] = round(1e3 * min(own), 2)
            row[f"{kind}_median_ms"] = round(1e3 * statistics.median(own), 2)
            row[f"{kind}_ratio"] = round(
                statistics.median(a / b for a, b in zip(own, theirs, strict=True)), 3
            )
        rows[name] = row
    return rows


def infer(options: argparse.Namespace) -> dict[str, Any]:
    """Time single images and batches in every engine."""
    timm = import_installed("timm")
    ours = create_model(options.model, **blocks(options)).eval()
    torch.nn.init.normal_(ours.head.weight, std=0.02)  # type: ignore[union-attr]
    theirs = timm.create_model(TIMM[options.model], pretrained=False, **blocks(options)).eval()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {"vitrine": Path(folder) / "ours.onnx", "timm": Path(folder) / "timm.onnx"}
        write_onnx(
            InferenceModel(ours), files["vitrine"], record=Record(config=ours.config, preprocess=Preprocess())
        )
        with quietly():
            torch.onnx.export(
                theirs,
                (torch.zeros(2, 3, 224, 224),),
                files["timm"],
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
        engines = {
            f"{name} in {engine}": start
            for name, file in files.items()
            for engine, start in open_file(file, options.threads).items()
        }
    if options.compile:
        compiled = torch.compile(theirs, dynamic=False)
        engines["timm in torch.compile"] = lambda pixels: compiled(torch.from_numpy(pixels))
    if options.eager:
        engines["vitrine in torch"] = lambda pixels: ours(torch.from_numpy(pixels))
        engines["timm in torch"] = lambda pixels: theirs(torch.from_numpy(pixels))
    with torch.inference_mode():
        for size in map(int, options.batches.split(",")):
            pixels = np.random.default_rng(0).normal(size=(size, 3, 224, 224)).astype(np.float32)
            runs: dict[str, Run] = {
                name: (lambda run=run, pixels=pixels: run(pixels)) for name, run in engines.items()
            }
            result[f"batch {size}"] = told(race(runs, options.rounds), peer="timm in onnxruntime")
    return result


def blocks(options: argparse.Namespace) -> dict[str, int]:
    return {"depth": options.depth} if options.depth else {}


def open_file(file: Path, threads: int) -> dict[str, Callable[[Any], object]]:
    """Open one ONNX file in every installed engine, each with the same settings for all files."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    runners: dict[str, Callable[[Any], object]] = {
        "onnxruntime": lambda pixels: session.run(None, {name: pixels})
    }
    try:
        import openvino
    except ImportError:
        return runners
    for precision in ("f32", "bf16"):
        compiled = openvino.Core().compile_model(
            file,
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": threads,
                "INFERENCE_PRECISION_HINT": precision,
            },
        )
        runners[f"openvino {precision}"] = compiled
    return runners


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Time one training step of ours and of timm's, in fp32 and under bf16 autocast."""
    timm = import_installed("timm")
    images = torch.randn(options.batch_size, 3, 224, 224)
    labels = torch.randint(0, 1000, (options.batch_size,))

    def stepper(model: torch.nn.Module, *, is_bf16: bool, is_fused: bool, is_compiled: bool = False) -> Run:
        forward = torch.compile(model) if is_compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=is_fused)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
                loss = torch.nn.functional.cross_entropy(forward(images).float(), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        return step

    runs = {}
    for precision in options.precisions.split(","):
        is_bf16 = precision == "bf16"
        for suffix in ("", ", compiled")[: 1 + options.compile]:
            ours = create_model(options.model, **blocks(options)).train()
            use_kernels(ours, device=images.device, precision=precision)  # as training does
            theirs = timm.create_model(TIMM[options.model], pretrained=False, **blocks(options)).train()
            # timm's own default for AdamW is not fused.
            settings = {"is_bf16": is_bf16, "is_compiled": bool(suffix)}
            runs[f"timm {precision}{suffix}"] = stepper(theirs, is_fused=False, **settings)
            runs[f"vitrine {precision}{suffix}"] = stepper(ours, is_fused=True, **settings)
    times = race(runs, options.rounds)
    result = told(times, peer=next(iter(runs)))
    for name in (name for name in runs if name.startswith("vitrine")):
        pairs = zip(times[f"timm {name.split()[1].strip(',')}"], times[name], strict=True)
        ratios = [theirs[1] / ours[1] for theirs, ours in pairs]
        result[f"times timm not compiled, {name}"] = {"processor": round(statistics.median(ratios), 3)}
    return result


def start(options: argparse.Namespace) -> dict[str, Any]:
    """Time the start-up: minimum of several, wall time and CPU time, above a bare Python."""

    def seconds(arguments: list[str]) -> tuple[float, float]:
        spent = []
        for _ in range(options.rounds):
            before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            spent.append((time.perf_counter() - clock, used))
        return min(clock for clock, _ in spent), min(used for _, used in spent)

    commands = {
        "python": ["-c", "pass"],
        "import vitrine": ["-c", "import vitrine"],
        "vitrine --help": ["-m", "vitrine", "--help"],
        "import torch": ["-c", "import torch"],
    }
    if options.predict:
        commands["vitrine predict"] = ["-m", "vitrine", "predict", *options.predict]
    return {
        name: dict(
            zip(("clock_s", "processor_s"), (round(value, 3) for value in seconds(words)), strict=True)
        )
        for name, words in commands.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("infer", "train", "start"))
    parser.add_argument("--model", default="ViT-Ti/16", choices=TIMM)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--depth", type=int, help="blocks of both models [default: the variant's own]")
    parser.add_argument("--precisions", default="fp32,bf16", help="of training")
    parser.add_argument("--compile", action="store_true", help="also under torch.compile (infer: timm only)")
    parser.add_argument("--eager", action="store_true", help="both in plain torch too")
    parser.add_argument("--predict", nargs="+", help="arguments of vitrine predict, for start")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    result = {"infer": infer, "train": train, "start": start}[options.what](options)
    about = {"model": options.model, "threads": options.threads, "torch": torch.__version__}
    print(json.dumps({**about, **result}, indent=2))


if __name__ == "__main__":
    main()
