"""Measure throughput and stability of the server, next to the model alone and to plain FastAPI.

    python benchmarks/serve.py latency MODEL --count 300
    python benchmarks/serve.py load MODEL PHOTOS --seconds 600 --clients 64
    python benchmarks/serve.py mutate MODEL PHOTOS --count 10000

`latency`: one client on loopback sends /health and /predict one after another: blocks of ten over a connection that
it keeps open and blocks of ten over new connections, in turns. Prints the median and the 90th percentile.

`load`: clients on loopback that each send the next photo as soon as the last one is answered, over connections that
they keep open, or with --new-connections over a new one per request. First, short turns of the model alone (pixels in
memory, the best batch size), the server, and the same model behind plain FastAPI with one request at a time: all
three stay loaded and take turns, so that other load slows all of them alike. Then the server for the whole time, with
its memory use. The clients run on the same cores, which counts against the servers. Processor time per image is
printed next to images/s, because other load changes it less. A round counts as quiet if other processes took at most
5 % of the processors in each of its turns; quiet rounds also have their own medians.

`mutate`: damaged images of every format; any 5xx status or an exit of the server is a failure.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from vitrine.serving.served_model import ServedModel

ROOT = Path(__file__).resolve().parents[1]
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
KEPT_PHOTOS = 256
FILLING_SECONDS = 1.5
QUIET = 0.05
BLOCK = 10


@dataclass
class Load:
    """The responses seen by the clients."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)
    rate: float = 0.0
    """Answers a second once the queue is full."""
    processor_ms: float = 0.0
    """Of server and clients together, an answer."""
    others: float = 0.0
    """Share of the machine's processors that anybody else took meanwhile."""

    def quantile(self, share: float) -> float:
        return sorted(self.latencies)[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("latency", "load", "mutate", "plain-server", "model-alone"))
    parser.add_argument("model")
    parser.add_argument("photos", nargs="?")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--round-seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--count", type=int, help="requests: 300 for latency, 10,000 for mutate by default")
    parser.add_argument(
        "--new-connections", action="store_true", help="load: a new connection for each request"
    )
    parser.add_argument("--growth", type=float, default=0.05, help="memory growth that counts as a failure")
    parser.add_argument(
        "--side", type=int, help="make the photos' shorter side so long, as a phone's page would"
    )
    parser.add_argument(
        "--onnx", help="let this export compute, in the server and in all that it is held against"
    )
    parser.add_argument("--precision", default="fp32", help="what torch computes in, likewise")
    parser.add_argument("--options", default="", help="more options for vitrine serve, in one string")
    options = parser.parse_args()
    if options.what == "plain-server":
        plain_server(options)
    elif options.what == "model-alone":
        model_alone(options)
    elif options.what == "latency":
        latency(options)
    elif options.what == "load":
        load(options)
    else:
        mutate(options)


def latency(options: argparse.Namespace) -> None:
    buffer = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(buffer, "JPEG")
    photo = read_photos(options.photos)[0] if options.photos else buffer.getvalue()
    with running(serve_command(options)) as (port, _):
        seconds = asyncio.run(one_client(port, photo, count=options.count or 300))
    for name, times in seconds.items():
        p50, p90 = (
            1000 * value for value in (statistics.median(times), sorted(times)[int(0.9 * len(times))])
        )
        print(f"{name}: p50 {p50:.2f} ms, p90 {p90:.2f} ms ({len(times)} requests)")


async def one_client(port: int, photo: bytes, *, count: int) -> dict[str, list[float]]:
    """Send blocks of requests, alternately over a keep-alive connection and over new ones; return their seconds."""
    requests = {
        "/health": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "/predict": predict_request(photo),
    }
    seconds: dict[str, list[float]] = {}
    for _ in range(max(1, count // BLOCK)):
        for path, request in requests.items():
            kept = await asyncio.open_connection("127.0.0.1", port)
            for number in range(BLOCK + 1):
                begin = time.perf_counter()
                _, _, is_open = await exchange(*kept, request)
                assert is_open, "the server closes a connection that should be kept"
                if number:  # the first request is one over a new connection
                    seconds.setdefault(f"{path}, kept connection", []).append(time.perf_counter() - begin)
            kept[1].close()
            for _ in range(BLOCK):
                begin = time.perf_counter()
                new = await asyncio.open_connection("127.0.0.1", port)
                await exchange(*new, request)
                seconds.setdefault(f"{path}, new connection", []).append(time.perf_counter() - begin)
                new[1].close()
    return seconds


def load(options: argparse.Namespace) -> None:
    photos = read_photos(options.photos)
    if options.side:
        photos = [smaller(photo, options.side) for photo in photos]
    print(f"{len(photos)} photos of {sum(map(len, photos)) / len(photos) / 1000:.0f} kB in the mean")
    if options.rounds:
        take_turns(photos, options)
    with running(serve_command(options)) as (port, pid):
        found = asyncio.run(
            clients(
                port,
                photos,
                number=options.clients,
                seconds=options.seconds,
                pid=pid,
                keeps=not options.new_connections,
            )
        )
    growth, where = memory_growth(found.memory)
    print(
        f"{options.seconds:.0f} s at {options.clients} clients: {len(found.latencies):,} answers, statuses "
        f"{found.statuses}, {found.rate:.1f} images/s; latency p50 {found.quantile(0.5) * 1000:.0f}, "
        f"p99 {found.quantile(0.99) * 1000:.0f}, largest {max(found.latencies) * 1000:.0f} ms; memory {where}, "
        f"growth {100 * growth:+.1f} %"
    )
    bad = {status for status in found.statuses if status != 200}
    sys.exit(1 if bad or growth > options.growth else 0)


def take_turns(photos: list[bytes], options: argparse.Namespace) -> None:
    """Run the three in turns; print every round, and the medians of rates, times and ratios."""
    turns: list[tuple[dict[str, float], Load, Load]] = []
    alone_command = part_command("model-alone", options, "--round-seconds", str(options.round_seconds))
    alone = subprocess.Popen(alone_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert alone.stdin is not None and alone.stdout is not None
    try:
        with running(serve_command(options)) as ours, running(part_command("plain-server", options)) as plain:
            print(alone.stdout.readline().strip())
            for number in range(options.rounds):
                alone.stdin.write("go\n")
                alone.stdin.flush()
                by_itself = json.loads(alone.stdout.readline())
                served, others = (
                    asyncio.run(
                        clients(
                            port,
                            photos,
                            number=options.clients,
                            seconds=options.round_seconds,
                            pid=pid,
                            keeps=not options.new_connections,
                        )
                    )
                    for port, pid in (ours, plain)
                )
                turns.append((by_itself, served, others))
                print(
                    f"round {number + 1} (others {100 * others_share(*turns[-1]):.0f} %): {described(*turns[-1])}",
                    flush=True,
                )
    finally:
        alone.stdin.close()
        alone.wait(60)
    print_medians("all", turns)
    print_medians("quiet", [turn for turn in turns if others_share(*turn) < QUIET])


def print_medians(which: str, turns: list[tuple[dict[str, float], Load, Load]]) -> None:
    if not turns:
        print(f"no {which} rounds")
        return
    alone, served, plain = zip(*turns, strict=True)
    middle = statistics.median
    rates = [middle(a["rate"] for a in alone), middle(s.rate for s in served), middle(p.rate for p in plain)]
    times = [
        middle(a["ms"] for a in alone),
        middle(s.processor_ms for s in served),
        middle(p.processor_ms for p in plain),
    ]
    print(
        f"medians of {len(turns)} {which} rounds: model alone, server, plain FastAPI "
        f"{', '.join(f'{rate:.1f}' for rate in rates)} images/s, {', '.join(f'{time:.1f}' for time in times)} ms; "
        f"server {middle(s.rate / a['rate'] for a, s, _ in turns):.3f} of the model alone and "
        f"{middle(s.rate / p.rate for _, s, p in turns):.2f} times plain FastAPI by images a second, "
        f"{middle(a['ms'] / s.processor_ms for a, s, _ in turns):.3f} and "
        f"{middle(p.processor_ms / s.processor_ms for _, s, p in turns):.2f} by processor time"
    )


def others_share(alone: dict[str, float], served: Load, plain: Load) -> float:
    return max(alone["others"], served.others, plain.others)


def busy_seconds() -> float:
    """CPU time of all processes on this machine so far."""
    user, nice, system, _, _, *interrupts = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + sum(interrupts[:2])) / os.sysconf("SC_CLK_TCK")


def described(alone: dict[str, float], served: Load, plain: Load) -> str:
    return (
        f"model alone {alone['rate']:.1f}, server {served.rate:.1f}, plain FastAPI {plain.rate:.1f} images/s; "
        f"processor time an image {alone['ms']:.1f}, {served.processor_ms:.1f}, {plain.processor_ms:.1f} ms"
    )


def memory_growth(memory: list[float]) -> tuple[float, str]:
    """Compare the mean of the last fifth with that of the second fifth; the first fifth is warm-up."""
    fifth = max(1, len(memory) // 5)
    early, late = statistics.mean(memory[fifth : 2 * fifth] or memory), statistics.mean(memory[-fifth:])
    return late / early - 1, f"{early / 2**20:.0f} MiB early, {late / 2**20:.0f} MiB late"


def read_photos(folder: str) -> list[bytes]:
    paths = sorted(Path(folder).rglob("*.jpg"))
    step = max(1, len(paths) // KEPT_PHOTOS)
    return [path.read_bytes() for path in paths[::step][:KEPT_PHOTOS]]


def smaller(photo: bytes, side: int) -> bytes:
    """Resize a photo's shorter side and encode it as JPEG again."""
    with Image.open(io.BytesIO(photo)) as image:
        factor = side / min(image.size)
        size = (max(side, round(image.width * factor)), max(side, round(image.height * factor)))
        buffer = io.BytesIO()
        image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        return buffer.getvalue()


def model_alone(options: argparse.Namespace) -> None:
    """Choose the best of four ways to use the cores with pixels in memory; then run once for every line read."""
    import threading

    import torch

    from vitrine.runtime.threads import available_cores as cores
    from vitrine.serving.batching import keep_freed_memory

    keep_freed_memory()  # as the server does

    def rate(
        threads: int, workers: int, batch: int, hosted: "ServedModel", seconds: float
    ) -> dict[str, float]:
        torch.set_num_threads(threads)
        shape = (hosted.predictor.preprocess.channels, *hosted.predictor.preprocess.size)
        pixels = list(torch.randint(0, 255, (batch, *shape), dtype=torch.uint8))
        hosted.compute(pixels, wanted="logits")
        end, counts = time.perf_counter() + seconds, [0] * workers

        def work(number: int) -> None:
            while time.perf_counter() < end:
                hosted.compute(pixels, wanted="logits")
                counts[number] += batch

        begin, spent, busy = time.perf_counter(), time.process_time(), busy_seconds()
        some = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        for each in some:
            each.start()
        for each in some:
            each.join()
        took, spent = time.perf_counter() - begin, time.process_time() - spent
        return {
            "rate": sum(counts) / took,
            "ms": spent / sum(counts) * 1000,
            "others": (busy_seconds() - busy - spent) / took / cores(),
        }

    together, each = opened(options, threads=cores()), opened(options, threads=1)
    ways = [
        (cores(), 1, 8, together),
        (cores(), 1, 32, together),
        (1, cores(), 8, each),
        (1, cores(), 32, each),
    ]
    found = [rate(*way, seconds=options.round_seconds / 2) for way in ways]
    # By CPU time, which other work on the machine changes least.
    best = min(range(len(ways)), key=lambda number: found[number]["ms"])
    threads, workers, batch, _ = ways[best]
    print(f"model alone: {workers} x {threads} threads, batches of {batch}", flush=True)
    for _ in sys.stdin:
        print(json.dumps(rate(*ways[best], seconds=options.round_seconds)), flush=True)


def opened(options: argparse.Namespace, *, threads: int) -> "ServedModel":
    """Open the model as the server does."""
    from vitrine.serving.open_models import open_models

    onnx = Path(options.onnx) if options.onnx else None
    [hosted] = open_models(
        [options.model], device="cpu", max_batch=32, threads=threads, onnx=onnx, precision=options.precision
    ).models
    return hosted


def serve_command(options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "vitrine", "serve", options.model, "--port", "0"]
    return [*command, *computed_by(options), *options.options.split()]


def part_command(what: str, options: argparse.Namespace, *more: str) -> list[str]:
    return [sys.executable, __file__, what, options.model, *computed_by(options), *more]


def computed_by(options: argparse.Namespace) -> list[str]:
    return ["--onnx", options.onnx] if options.onnx else ["--precision", options.precision]


def plain_server(options: argparse.Namespace) -> None:
    """The same model as a tutorial would serve it: one request at a time on all cores."""
    import uvicorn
    from fastapi import FastAPI, Request

    from vitrine.runtime.threads import available_cores as cores
    from vitrine.serving.server import bind

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


@contextmanager
def running(command: list[str]) -> Iterator[tuple[int, int]]:
    """Start a server and yield its port and process id, then stop it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    server = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        yield port_of(server), server.pid
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


async def clients(
    port: int, photos: list[bytes], *, number: int, seconds: float, pid: int, keeps: bool
) -> Load:
    found = Load()
    begin = time.perf_counter()
    end = begin + FILLING_SECONDS + seconds

    async def client(which: int) -> None:
        rng = random.Random(which)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            start = time.perf_counter()
            status, _, is_open = await post(reader, writer, rng.choice(photos))
            found.latencies.append(time.perf_counter() - start)
            found.statuses[status] = found.statuses.get(status, 0) + 1
            if not (is_open and keeps):
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    async def watch() -> None:
        while time.perf_counter() < end:
            found.memory.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES)
            await asyncio.sleep(min(1.0, seconds / 20))

    async def measure() -> None:
        """Exclude the time in which the queue fills or empties."""
        await asyncio.sleep(FILLING_SECONDS)
        start, count = time.perf_counter(), len(found.latencies)
        spent, busy = processor_seconds(pid) + time.process_time(), busy_seconds()
        await asyncio.sleep(seconds)
        answers = max(1, len(found.latencies) - count)
        took = time.perf_counter() - start
        spent = processor_seconds(pid) + time.process_time() - spent
        found.rate, found.processor_ms = answers / took, spent / answers * 1000
        found.others = (busy_seconds() - busy - spent) / took / (os.cpu_count() or 1)

    await asyncio.gather(watch(), measure(), *(client(which) for which in range(number)))
    found.seconds = time.perf_counter() - begin
    return found


async def post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> tuple[int, bytes, bool]:
    """Send a picture over an open connection; return status, response, and whether it stays open."""
    return await exchange(reader, writer, predict_request(body))


def predict_request(body: bytes) -> bytes:
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes, bool]:
    writer.write(request)
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
        statuses = asyncio.run(send_mutated(port, whole, mutated, count=options.count or 10_000))
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
