"""Many pictures at once: how fast, in how much memory, and whether parts survive being killed.

python benchmarks/batch.py rate --count 60000          JPEG files to embeddings beside the decoder alone
python benchmarks/batch.py memory --counts 10000,1000000
python benchmarks/batch.py kills --count 50000 --kills 10
python benchmarks/batch.py precision --photos DIR --model box --compare 200   bf16 beside fp32
python benchmarks/batch.py storage --count 150        the same job from and to S3 (moto on loopback) and a disk
"""

import argparse
import hashlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.opening import open_loose
from vitrine.data.sources.shard_writing import write_shards
from vitrine.data.sources.source import Example, Source
from vitrine.evaluation.outputs import at_a_time_alone
from vitrine.evaluation.streaming import Pace, chosen_workers, open_loader
from vitrine.runtime.devices import choose_device


def jpeg(number: int, side: int) -> bytes:
    """Encode a picture with the detail of a photo: a smooth scene with texture, 15 to 20 KB at 256 px."""
    rng = np.random.default_rng(number)
    scene = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((side, side), 3)
    texture = rng.normal(0, 9, (side, side, 1))
    pixels = np.clip(np.asarray(scene) + texture, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=85)
    return file.getvalue()


def write_files(folder: str, start: int, stop: int, side: int) -> None:
    for number in range(start, stop):
        place = Path(folder) / f"{number // 1000:04d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:07d}.jpg").write_bytes(jpeg(number, side))


def files(folder: Path, *, count: int, side: int) -> Path:
    """Write JPEG files on all cores."""
    step = 500
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        starts = range(0, count, step)
        jobs = [pool.submit(write_files, str(folder), s, min(s + step, count), side) for s in starts]
        for job in jobs:
            job.result()
    return folder


def save_model(folder: Path, name: str, *, side: int, **options: object) -> Path:
    torch.manual_seed(0)
    model = vitrine.create_model(name, num_classes=1000, image_size=side, **options)
    torch.nn.init.normal_(model.head.weight, std=0.02)
    vitrine.save(model, folder, preprocess=Preprocess(size=(side, side)))
    return folder


def small_model(folder: Path) -> Path:
    return save_model(folder, "ViT", side=16, patch_size=8, width=16, depth=1, num_heads=1, mlp_width=32)


def decoder_alone(photos: Path, preprocess: Preprocess, *, device: torch.device) -> Pace:
    """Read every file with the workers that `vitrine embed` would start, and discard the batches."""
    source, pace = open_loose(photos), Pace()
    count, kind = chosen_workers(None, device=device, num_pictures=len(source))
    batch = at_a_time_alone(device, preprocess.size)
    with open_loader(
        source, preprocess, batch_size=batch, num_workers=count, worker_kind=kind, device=device,
        wants_digests=True,
    ) as loader:  # fmt: skip
        for _ in pace.timed(loader.evaluation_batches()):
            pass
    return pace


def rate(options: argparse.Namespace, work: Path) -> None:
    device = choose_device(options.device)
    began = time.monotonic()
    photos = files(work / "photos", count=options.count, side=options.side)
    size = sum(file.stat().st_size for file in list(photos.glob("*/*"))[:1000]) / min(1000, options.count)
    seconds = time.monotonic() - began
    print(
        f"{options.count:,} JPEGs of {options.side} px, {size / 1000:.1f} KB each: {seconds:.0f} s",
        flush=True,
    )
    model = save_model(work / "model", options.model, side=options.size)
    preprocess = vitrine.load(model).preprocess
    rows = []
    for turn in range(options.rounds):
        alone = decoder_alone(photos, preprocess, device=device)
        print(f"decoder alone: {alone}", flush=True)
        began = time.monotonic()
        out = work / f"parts{turn}"
        done = vitrine.embed(model, photos, out=out, device=options.device).parts
        seconds = time.monotonic() - began
        print(
            f"vitrine embed: {done.rate:,.0f}/s, waiting {done.waiting:.0%}, {seconds:.1f} s in all",
            flush=True,
        )
        rows.append((alone.rate, done.rate, done.waiting, options.count / seconds))
        shutil.rmtree(out)
    for workers in map(int, options.workers.split(",") if options.workers else ()):
        done = vitrine.embed(model, photos, out=out, device=options.device, workers=workers).parts
        print(
            f"vitrine embed with {workers} workers: {done.rate:,.0f}/s, waiting {done.waiting:.0%}",
            flush=True,
        )
        shutil.rmtree(out)
    began = time.monotonic()
    predicted = vitrine.predict(model, photos, out=work / "classes", device=options.device).parts
    print(f"vitrine predict: {predicted.rate:,.0f}/s, {time.monotonic() - began:.1f} s in all")
    compare_precisions(model, photos, work, device=options.device, count=options.compare)
    print("\ndecoder/s   embed/s   of decoder   waiting   whole command/s")
    for alone_rate, embed_rate, waiting, whole in rows:
        share = embed_rate / max(alone_rate, 1e-9)  # 0 for a single batch, at toy size
        print(f"{alone_rate:9,.0f} {embed_rate:9,.0f} {share:12.1%} {waiting:9.0%} {whole:17,.0f}")


def precision(options: argparse.Namespace, work: Path) -> None:
    compare_precisions(options.model, options.photos, work, device=options.device, count=options.compare)


def compare_precisions(model: str | Path, photos: Path, work: Path, *, device: str, count: int) -> None:
    """Compare embeddings and classes in bf16 with fp32, on pictures from all over the folder."""
    from pyarrow import parquet

    every = sorted(photos.rglob("*.jpg"))
    names = [str(file) for file in every[:: max(1, len(every) // count)][:count]]
    tables = {}
    for kind in ("fp32", "bf16"):
        vitrine.embed(model, names, out=work / kind, device=device, precision=kind)
        tables[kind] = parquet.read_table(work / kind)
    exact, quick = (
        np.stack(tables[kind]["embedding"].to_numpy(zero_copy_only=False)).astype(np.float64)
        for kind in ("fp32", "bf16")
    )
    norms = np.linalg.norm(exact, axis=1), np.linalg.norm(quick, axis=1)
    cosine = (exact * quick).sum(axis=1) / (norms[0] * norms[1])
    same = np.mean(
        [a == b for a, b in zip(tables["fp32"]["predicted"], tables["bf16"]["predicted"], strict=True)]
    )
    error = np.linalg.norm(exact - quick, axis=1) / norms[0]
    print(
        f"bf16 beside fp32, {len(names):,} pictures: relative error of an embedding {error.mean():.4f} (largest "
        f"{error.max():.4f}), least cosine {cosine.min():.6f}, same class {same:.2%}"
    )


class Repeated(Source):
    """Any number of pictures from a few encoded ones."""

    def __init__(self, count: int, *, side: int = 16) -> None:
        self.encoded = [jpeg(number, side) for number in range(64)]
        self.labels, self.classes, self.address = np.zeros(count, dtype=np.int32), ("any",), "repeated"

    def name(self, index: int) -> str:
        return f"{index // 1000:06d}/{index:09d}.jpg"

    def read(self, index: int) -> Example:
        return Example(data=self.encoded[index % 64], label=0, name=self.name(index))

    def size(self, index: int) -> int:
        return len(self.encoded[index % 64])


def embed_and_watch(arguments: list[str]) -> tuple[float, float, float]:
    """Run `vitrine embed`; return seconds, and MiB at a fifth of the run and at its peak, workers included."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vitrine", "embed", *arguments], stderr=subprocess.DEVNULL
    )
    began, memory = time.monotonic(), []
    while process.poll() is None:
        memory.append(memory_of_tree(process.pid))
        time.sleep(0.25)
    if process.returncode:
        raise SystemExit(f"vitrine embed ended with {process.returncode}")
    return time.monotonic() - began, memory[len(memory) // 5], max(memory)


def memory_of_tree(root: int) -> float:
    """Return MiB of a process and its children; memory that they share counts once (PSS)."""
    total = 0
    children = Path(f"/proc/{root}/task/{root}/children")
    try:
        pids = [root, *map(int, children.read_text().split())]
        for pid in pids:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):  # it has just ended
        pass
    return total / 1024


def memory(options: argparse.Namespace, work: Path) -> None:
    model = small_model(work / "model")
    rows = []
    for count in map(int, options.counts.split(",")):
        shards, out = work / "shards", work / "parts"
        write_shards({"all": Repeated(count)}, shards, shard_bytes=64 * 2**20)
        seconds, early, most = embed_and_watch(
            [str(model), str(shards), "--out", str(out), "--device", options.device, "--batch-size", "64"]
        )
        rows.append((count, seconds, early, most))
        print(f"{count:,} pictures: {seconds:.0f} s, {most:,.0f} MiB at most", flush=True)
        shutil.rmtree(shards)
        shutil.rmtree(out)
    print("\n pictures  seconds  MiB early  MiB at most  bytes per further picture")
    for count, seconds, early, most in rows:
        more = (most - rows[0][3]) * 2**20 / max(count - rows[0][0], 1)
        print(f"{count:9,} {seconds:8.0f} {early:10,.0f} {most:12,.0f} {more:26.0f}")


def hashes(folder: Path) -> dict[str, str]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def kills(options: argparse.Namespace, work: Path) -> None:
    model, shards = small_model(work / "model"), work / "shards"
    write_shards({"all": Repeated(options.count)}, shards, shard_bytes=16 * 2**20)
    command = [sys.executable, "-m", "vitrine", "embed", str(model), str(shards), "--device", "cpu"]
    began = time.monotonic()
    subprocess.run([*command, "--out", str(work / "whole")], check=True, capture_output=True)
    whole = time.monotonic() - began
    print(f"uninterrupted: {whole:.0f} s", flush=True)
    rng, out, killed = random.Random(0), work / "killed", 0
    while killed < options.kills:
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*command, "--out", str(out)], **silent)
        time.sleep(rng.uniform(0.3, 1) * whole / options.kills + options.start)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
        done = len(list(out.glob("part-*.parquet")))
        print(f"kill -9 number {killed}: {done} parts", flush=True)
    last = subprocess.run([*command, "--out", str(out)], check=True, capture_output=True, text=True)
    print(last.stdout.strip())
    same = hashes(out) == hashes(work / "whole")
    print(f"\n{options.count:,} pictures, kill -9 {killed} times: {'byte-equal' if same else 'DIFFERENT'}")
    if not same:
        raise SystemExit(1)


def storage(options: argparse.Namespace, work: Path) -> None:
    import boto3
    import fsspec

    os.environ |= {
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{options.port}", "VITRINE_CACHE": str(work / "cache"),
    }  # fmt: skip
    # A process of its own, as the store would be: its time is not that of the reader.
    command = [sys.executable, "-m", "moto.server", "-p", str(options.port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = boto3.client("s3")
        for _ in range(60):
            time.sleep(0.5)
            try:
                client.create_bucket(Bucket="pictures")
                break
            except Exception:  # it has not started yet
                continue
        photos = files(work / "photos", count=options.count, side=options.side)
        model = save_model(work / "model", options.model, side=options.size)
        vitrine.shard(photos, work / "shards")
        fsspec.filesystem("s3").put(str(work / "shards"), "pictures/", recursive=True)
        rates: dict[str, list[float]] = {"disk": [], "S3": []}
        for turn in range(options.rounds):
            for where, place in (("disk", str(work / "shards")), ("S3", "s3://pictures/shards")):
                out = f"s3://pictures/parts{turn}" if where == "S3" else str(work / f"parts{turn}")
                shutil.rmtree(work / "cache", ignore_errors=True)
                began, before = time.monotonic(), time.process_time()
                done = vitrine.embed(model, place, out=out, device=options.device).parts
                rates[where].append(options.count / (time.process_time() - before))
                seconds = time.monotonic() - began
                print(
                    f"{where}: {rates[where][-1]:,.1f} pictures per second of processor time, "
                    f"{options.count / seconds:,.1f} per second, waiting for data {done.waiting:.0%}",
                    flush=True,
                )
    finally:
        server.terminate()
    disk, s3 = (float(np.median(rates[where])) for where in ("disk", "S3"))
    print(f"\nmedians per second of processor time: disk {disk:,.1f}, S3 {s3:,.1f}: {s3 / disk:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("rate", "memory", "kills", "precision", "storage"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--count", type=int, default=60_000)
    parser.add_argument("--compare", type=int, default=4096)
    parser.add_argument("--counts", default="10000,100000,1000000")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--start", type=float, default=3.0, help="seconds that a start takes, before a kill")
    parser.add_argument("--workers", default="", help="other numbers of workers to try, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--photos", type=Path, help="for precision: a folder of JPEGs")
    parser.add_argument("--port", type=int, default=5055, help="of the S3 server on loopback")
    parser.add_argument("--work", type=Path, help="folder to work in [default: a temporary one]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vitrine-batch-", dir=options.work) as folder:
        work = {"rate": rate, "memory": memory, "kills": kills, "precision": precision, "storage": storage}
        work[options.what](options, Path(folder))


if __name__ == "__main__":
    main()
