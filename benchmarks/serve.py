"""How fast and how steady the server is: beside the model alone, and beside plain FastAPI.

    python benchmarks/serve.py load MODEL PHOTOS --seconds 600 --clients 64
    python benchmarks/serve.py mutate MODEL PHOTOS --count 10000

`load`: clients on loopback that each send a photo as soon as the last one is answered. First short rounds of the
model alone (pixels ready in memory, the best batch), the server, and the same model behind plain FastAPI one request
at a time, interleaved so that a busy machine slows all alike; then the server for the whole time, its memory watched.
The clients' own work is on the same cores and counts against the servers. Beside images a second stands the processor
time of an image, which other work on the machine changes little.

`mutate`: damaged pictures of every kind; any 5xx or a server that ends is a failure.
"""

import argparse
import asyncio
import io
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from vitrine.serving.hosting import Hosted

ROOT = Path(__file__).resolve().parents[1]
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
KEPT_PHOTOS = 256


@dataclass
class Load:
    """What the clients saw."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)
    processor_seconds: float = 0.0
    """Of server and clients together."""

    @property
    def processor_ms(self) -> float:
        return self.processor_seconds / len(self.latencies) * 1000

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        return sorted(self.latencies)[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("load", "mutate", "plain-server", "model-alone"))
    parser.add_argument("model")
    parser.add_argument("photos", nargs="?")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--round-seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument(
        "--side", type=int, help="make the photos' shorter side so long, as a phone's page would"
    )
    parser.add_argument("--onnx", help="let this export compute, in the server and in all that it is held against")
    parser.add_argument("--precision", default="fp32", help="what torch computes in, likewise")
    parser.add_argument("--options", default="", help="more options for vitrine serve, in one string")
    options = parser.parse_args()
    if options.what == "plain-server":
        plain_server(options)
    elif options.what == "model-alone":
        print(json.dumps(model_alone(options)))
    elif options.what == "load":
        load(options)
    else:
        mutate(options)


def load(options: argparse.Namespace) -> None:
    photos = read_photos(options.photos)
    if options.side:
        photos = [smaller(photo, options.side) for photo in photos]
    print(f"{len(photos)} photos of {sum(map(len, photos)) / len(photos) / 1000:.0f} kB in the mean")
    alone, served, plain = [], [], []
    for number in range(options.rounds):
        by_itself = alone_in_a_process(options)
        ours = asked(serve_command(options), photos, options, seconds=options.round_seconds)
        others = asked(part_command("plain-server", options), photos, options, seconds=options.round_seconds)
        alone.append(by_itself["rate"])
        served.append(ours.rate)
        plain.append(others.rate)
        print(
            f"round {number + 1}: model alone {alone[-1]:.1f}, server {served[-1]:.1f}, plain FastAPI "
            f"{plain[-1]:.1f} images/s; processor time an image: alone {by_itself['ms']:.1f}, server and clients "
            f"{ours.processor_ms:.1f}, plain {others.processor_ms:.1f} ms", flush=True,
        )  # fmt: skip
    if options.rounds:
        middle = {name: statistics.median(rates) for name, rates in
                  (("alone", alone), ("served", served), ("plain", plain))}  # fmt: skip
        print(
            f"medians: server {middle['served'] / middle['alone']:.3f} of the model alone, "
            f"{middle['served'] / middle['plain']:.2f} times plain FastAPI"
        )
    found = asked(serve_command(options), photos, options, seconds=options.seconds)
    growth, where = memory_growth(found.memory)
    print(
        f"{options.seconds:.0f} s at {options.clients} clients: {len(found.latencies):,} answers, statuses "
        f"{found.statuses}, {found.rate:.1f} images/s; latency p50 {found.quantile(0.5) * 1000:.0f}, "
        f"p99 {found.quantile(0.99) * 1000:.0f}, largest {max(found.latencies) * 1000:.0f} ms; memory {where}, "
        f"growth {100 * growth:+.1f} %"
    )
    bad = {status for status in found.statuses if status != 200}
    sys.exit(1 if bad or growth > 0.05 else 0)


def memory_growth(memory: list[float]) -> tuple[float, str]:
    """Compare the mean of the last fifth with that of the second: the first is warming up."""
    fifth = max(1, len(memory) // 5)
    early, late = statistics.mean(memory[fifth : 2 * fifth] or memory), statistics.mean(memory[-fifth:])
    return late / early - 1, f"{early / 2**20:.0f} MiB early, {late / 2**20:.0f} MiB late"


def read_photos(folder: str) -> list[bytes]:
    paths = sorted(Path(folder).rglob("*.jpg"))
    step = max(1, len(paths) // KEPT_PHOTOS)
    return [path.read_bytes() for path in paths[::step][:KEPT_PHOTOS]]


def smaller(photo: bytes, side: int) -> bytes:
    """Make a photo's shorter side so long, JPEG again."""
    with Image.open(io.BytesIO(photo)) as image:
        factor = side / min(image.size)
        size = (max(side, round(image.width * factor)), max(side, round(image.height * factor)))
        buffer = io.BytesIO()
        image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        return buffer.getvalue()


def alone_in_a_process(options: argparse.Namespace) -> dict[str, float]:
    command = part_command("model-alone", options, "--round-seconds", str(options.round_seconds))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def model_alone(options: argparse.Namespace) -> dict[str, float]:
    """Images a second through the model, pixels ready in memory, by the best of four ways to use the cores."""
    import threading

    import torch

    from vitrine.serving.memory import keep_freed_memory
    from vitrine.serving.service import cores

    keep_freed_memory()

    def rate(threads: int, workers: int, batch: int, seconds: float) -> dict[str, float]:
        torch.set_num_threads(threads)
        hosted = opened(options, threads=threads)
        shape = (hosted.predictor.preprocess.channels, *hosted.predictor.preprocess.size)
        pixels = list(torch.randint(0, 255, (batch, *shape), dtype=torch.uint8))
        hosted.compute(pixels, wanted="logits")
        end, counts = time.perf_counter() + seconds, [0] * workers

        def work(number: int) -> None:
            while time.perf_counter() < end:
                hosted.compute(pixels, wanted="logits")
                counts[number] += batch

        begin, spent = time.perf_counter(), time.process_time()
        some = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        for each in some:
            each.start()
        for each in some:
            each.join()
        done = sum(counts)
        return {
            "rate": done / (time.perf_counter() - begin),
            "ms": (time.process_time() - spent) / done * 1000,
        }

    ways = [(cores(), 1, 8), (cores(), 1, 32), (1, cores(), 8), (1, cores(), 32)]
    found = [rate(*way, options.round_seconds / len(ways)) for way in ways]
    return max(found, key=lambda each: each["rate"])


def opened(options: argparse.Namespace, *, threads: int) -> "Hosted":
    """Open the model as the server does."""
    from vitrine.serving.hosting import open_hosted

    onnx = Path(options.onnx) if options.onnx else None
    [hosted], _ = open_hosted(
        [options.model], device="cpu", most=32, threads=threads, onnx=onnx, precision=options.precision
    )
    return hosted


def serve_command(options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "vitrine.cli", "serve", options.model, "--port", "0"]
    return [*command, *computed_by(options), *options.options.split()]


def part_command(what: str, options: argparse.Namespace, *more: str) -> list[str]:
    return [sys.executable, __file__, what, options.model, *computed_by(options), *more]


def computed_by(options: argparse.Namespace) -> list[str]:
    return ["--onnx", options.onnx] if options.onnx else ["--precision", options.precision]


def plain_server(options: argparse.Namespace) -> None:
    """The same model as a tutorial would serve it: one request at a time, all cores for it."""
    import uvicorn
    from fastapi import FastAPI, Request

    from vitrine.serving.server import bind
    from vitrine.serving.service import cores

    hosted = opened(options, threads=cores())
    predictor = hosted.predictor
    app = FastAPI()

    @app.post("/predict")
    async def predict(request: Request) -> list[tuple[str, float]]:
        pixels = predictor.pixels(await request.body())
        [logits] = hosted.compute([pixels], wanted="logits")
        [answers] = predictor.best(logits[None])
        return [(answer.label, answer.probability) for answer in answers]

    with bind("127.0.0.1", 0) as socket:
        print(f"Serving at http://127.0.0.1:{socket.getsockname()[1]} ", file=sys.stderr, flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[socket])


def asked(command: list[str], photos: list[bytes], options: argparse.Namespace, *, seconds: float) -> Load:
    """Start a server, let the clients at it for so long, stop it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    server = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        port = port_of(server)
        before = processor_seconds(server.pid) + time.process_time()
        found = asyncio.run(clients(port, photos, number=options.clients, seconds=seconds, pid=server.pid))
        found.processor_seconds = processor_seconds(server.pid) + time.process_time() - before
        return found
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(90)


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def port_of(server: "subprocess.Popen[str]") -> int:
    assert server.stderr is not None
    for line in server.stderr:
        if found := re.search(r"http://127\.0\.0\.1:(\d+) ", line):
            return int(found.group(1))
    raise SystemExit("the server did not start")


async def clients(port: int, photos: list[bytes], *, number: int, seconds: float, pid: int) -> Load:
    found = Load()
    begin = time.perf_counter()
    end = begin + seconds

    async def client(which: int) -> None:
        rng = random.Random(which)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            start = time.perf_counter()
            status, _, is_open = await post(reader, writer, rng.choice(photos))
            found.latencies.append(time.perf_counter() - start)
            found.statuses[status] = found.statuses.get(status, 0) + 1
            if not is_open:
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    async def watch() -> None:
        while time.perf_counter() < end:
            found.memory.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES)
            await asyncio.sleep(min(1.0, seconds / 20))

    await asyncio.gather(watch(), *(client(which) for which in range(number)))
    found.seconds = time.perf_counter() - begin
    return found


async def post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> tuple[int, bytes, bool]:
    """Send a picture over an open connection; return status, answer, and whether it stays open."""
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = re.search(rb"content-length: (\d+)", answer)
    data = await reader.readexactly(int(length.group(1))) if length else await reader.read()
    return int(answer.split()[1]), data, b"connection: close" not in answer and length is not None


def mutate(options: argparse.Namespace) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from journeys.test_serve_hostile import KINDS, mutated
    from pictures import photo
    from servers import encoded

    whole = [encoded(photo(number, 120, 160), kind) for number, kind in enumerate(KINDS)]
    if options.photos:
        whole += read_photos(options.photos)[: 2 * len(KINDS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    server = subprocess.Popen(serve_command(options), stderr=subprocess.PIPE, text=True, env=environment)
    try:
        port = port_of(server)
        begin = time.perf_counter()
        statuses = asyncio.run(send_mutated(port, whole, mutated, count=options.count))
        with_end = server.poll()
        print(
            f"{sum(statuses.values()):,} mutated uploads in {time.perf_counter() - begin:.0f} s: "
            f"{dict(sorted(statuses.items()))}; server {'ended' if with_end is not None else 'alive'}; "
            f"{int(Path(f'/proc/{server.pid}/statm').read_text().split()[1]) * PAGE_BYTES / 2**20:.0f} MiB"
        )
        ready = asyncio.run(is_ready(port))
        print(json.dumps(ready))
        failed = (
            with_end is not None or ready["status"] != "ready" or any(status >= 500 for status in statuses)
        )
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(90)
    sys.exit(int(failed))


async def is_ready(port: int) -> dict[str, object]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    found: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


async def send_mutated(port: int, whole: list[bytes], mutated: object, *, count: int) -> dict[int, int]:
    statuses: dict[int, int] = {}

    async def client(first: int, step: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for seed in range(first, count, step):
            status, _, is_open = await post(reader, writer, mutated(whole[seed % len(whole)], seed))  # type: ignore[operator]
            statuses[status] = statuses.get(status, 0) + 1
            if not is_open:
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    await asyncio.gather(*(client(first, 16) for first in range(16)))
    return statuses


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
