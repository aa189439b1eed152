"""Measure time and memory of loading and converting models that are too large for the tests.

    python benchmarks/checkpoints.py load            ViT-B/16: time against safetensors' own, peak memory
    python benchmarks/checkpoints.py convert         ViT-H/14 to every layout that supports it: peak memory
    python benchmarks/checkpoints.py convert --model ViT-B/16 --to npz,timm

Each measurement runs in its own process, so that peaks don't mix. Limits: loading takes at most 1.3 times as long as
safetensors.torch.load_file plus one copy, and at most the file's size plus one tensor of memory; converting takes
less than 1.5 times the file's size.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import vitrine

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["load", "convert", "child"])
    parser.add_argument("--model")
    parser.add_argument("--work", type=Path, help="folder for the files [default: a temporary one]")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--to", default="npz,timm,torchvision,vitrine", help="layouts to convert to")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "child":
        print(json.dumps(JOBS[(job := json.loads(options.job)).pop("name")](**job)))
        return
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        if options.what == "load":
            measure_loading(Path(folder), options.model or "ViT-B/16", repeat=options.repeat)
        else:
            measure_converting(Path(folder), options.model or "ViT-H/14", layouts=options.to.split(","))


def measure_loading(folder: Path, model: str, *, repeat: int) -> None:
    source = made(folder, model)
    file = source / "model.safetensors"
    size = file.stat().st_size
    largest = max(parameter.nbytes for parameter in vitrine.load(source).model.parameters())
    runs: dict[str, list[dict[str, float]]] = {"reference": [], "vitrine": []}
    for _ in range(repeat):  # alternately, so that a busy machine disturbs both alike
        for name, done in runs.items():
            done.append(child(name=name, path=str(source)))
    best = {name: min(run["seconds"] for run in timed) for name, timed in runs.items()}
    memory = min(run["memory"] for run in runs["vitrine"])
    ratio = best["vitrine"] / best["reference"]
    print(f"{model}: {size / MIB:.0f} MiB, largest tensor {largest / MIB:.0f} MiB, best of {repeat}")
    print(
        f"load_file plus one copy: {best['reference']:.3f} s; vitrine.load with checksum: {best['vitrine']:.3f} s"
    )
    print(f"time: {ratio:.2f} times (limit 1.3)")
    print(f"peak memory above the start: {memory / MIB:.0f} MiB (limit {(size + largest) / MIB:.0f} MiB)")


def measure_converting(folder: Path, model: str, *, layouts: list[str]) -> None:
    source = made(folder, model)
    size = (source / "model.safetensors").stat().st_size
    print(f"{model}: {size / MIB:,.0f} MiB, limit {1.5 * size / MIB:,.0f} MiB")
    for to, generation, check in (
        ("npz", "A", False),
        ("npz", "D", False),
        ("timm", "A", False),
        ("torchvision", "A", False),
        ("vitrine", "A", True),
    ):
        if to not in layouts:
            continue
        name = f"out.{to}" if to == "npz" else "out"
        job = {"name": "convert", "path": str(source), "to": to, "generation": generation, "check": check}
        done = child(**job, destination=str(folder / name))
        what = f"{to} {generation}" if to == "npz" else f"{to}, logits compared" if check else to
        print(
            f"{what}: {done['seconds']:.1f} s, peak {done['memory'] / MIB:,.0f} MiB, {done['memory'] / size:.2f}"
        )


def made(folder: Path, model: str) -> Path:
    source = folder / "source"
    if not source.exists():
        vitrine.save(vitrine.create_model(model), source)
    return source


def child(**job: object) -> dict[str, float]:
    command = [sys.executable, __file__, "child", "--job", json.dumps(job)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def start() -> tuple[int, float]:
    """Reset the peak (a child inherits its parent's) and return the resident memory and the time."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS"), time.perf_counter()


def resident(which: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))


def since(began: tuple[int, float]) -> dict[str, float]:
    return {"seconds": time.perf_counter() - began[1], "memory": resident("VmHWM") - began[0]}


def run_reference(path: str) -> dict[str, float]:
    import safetensors.torch

    began = start()
    tensors = safetensors.torch.load_file(Path(path) / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    return since(began)


def run_load(path: str) -> dict[str, float]:
    import vitrine.checkpoints  # time the loading, not the import

    began = start()
    vitrine.load(path)
    return since(began)


def run_convert(path: str, destination: str, to: str, generation: str, check: bool) -> dict[str, float]:
    import vitrine.checkpoints

    began = start()
    result = vitrine.checkpoints.convert(
        path,
        destination,
        to=to,
        generation=generation,
        check_logits=check,
        approximate=True,
        overwrite=True,
    )
    assert result.num_identical == len(result.tensors)
    return since(began)


JOBS = {"reference": run_reference, "vitrine": run_load, "convert": run_convert}

if __name__ == "__main__":
    main()
