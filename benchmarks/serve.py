"""Measure throughput and stability of the server, next to the model alone and to plain FastAPI.

    python benchmarks/serve.py latency MODEL --count 300
    python benchmarks/serve.py load MODEL PHOTOS --seconds 600 --clients 64
    python benchmarks/serve.py engines MODEL PHOTOS --rounds 3 --round-seconds 20
    python benchmarks/serve.py mutate MODEL PHOTOS --count 10000
    python benchmarks/serve.py adapters ViT-B/16 --count 4

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

`engines` and `adapters`: described in parts/serve_engines.py and parts/serve_adapters.py.
"""

import argparse
import asyncio
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from parts.serve_adapters import adapters
from parts.serve_engines import engines
from parts.serve_rivals import model_alone, plain_server
from parts.serve_traffic import (
    PAGE_BYTES,
    ROOT,
    Load,
    clients,
    exchange,
    is_ready,
    port_of,
    predict_request,
    read_photos,
    running,
    send_mutated,
    shrunk,
)
from PIL import Image

QUIET = 0.05
BLOCK = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "what", choices=("latency", "load", "mutate", "adapters", "engines", "plain-server", "model-alone")
    )
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
        "--side", type=int, help="resize the photos to this shorter side, as the page on a phone does"
    )
    parser.add_argument(
        "--onnx", help="compute with this export, in the server and in everything that it is compared with"
    )
    parser.add_argument("--precision", default="fp32", help="precision of torch, likewise")
    parser.add_argument("--checked", help="engines: pictures for the trial, other than those that are sent")
    parser.add_argument("--options", default="", help="more options for vitrine serve, in one string")
    options = parser.parse_args()
    if options.what == "plain-server":
        plain_server(options)
    elif options.what == "model-alone":
        model_alone(options)
    elif options.what == "adapters":
        adapters(options)
    elif options.what == "engines":
        engines(options)
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
        photos = [shrunk(photo, options.side) for photo in photos]
    print(f"{len(photos)} photos of {sum(map(len, photos)) / len(photos) / 1000:.0f} kB on average")
    if options.rounds:
        take_turns(photos, options)
    with running(serve_command(options)) as (port, pid):
        outcome = asyncio.run(
            clients(
                port,
                photos,
                number=options.clients,
                seconds=options.seconds,
                pid=pid,
                keeps=not options.new_connections,
            )
        )
    growth, where = memory_growth(outcome.memory)
    print(
        f"{options.seconds:.0f} s at {options.clients} clients: {len(outcome.latencies):,} answers, statuses "
        f"{outcome.statuses}, {outcome.rate:.1f} images/s; latency p50 {outcome.quantile(0.5) * 1000:.0f}, "
        f"p99 {outcome.quantile(0.99) * 1000:.0f}, largest {max(outcome.latencies) * 1000:.0f} ms; memory {where}, "
        f"growth {100 * growth:+.1f} %"
    )
    bad = {status for status in outcome.statuses if status != 200}
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
        f"{middle(s.rate / p.rate for _, s, p in turns):.2f} times plain FastAPI by images/s, "
        f"{middle(a['ms'] / s.processor_ms for a, s, _ in turns):.3f} and "
        f"{middle(p.processor_ms / s.processor_ms for _, s, p in turns):.2f} by processor time"
    )


def others_share(alone: dict[str, float], served: Load, plain: Load) -> float:
    return max(alone["others"], served.others, plain.others)


def described(alone: dict[str, float], served: Load, plain: Load) -> str:
    return (
        f"model alone {alone['rate']:.1f}, server {served.rate:.1f}, plain FastAPI {plain.rate:.1f} images/s; "
        f"processor time per image {alone['ms']:.1f}, {served.processor_ms:.1f}, {plain.processor_ms:.1f} ms"
    )


def memory_growth(memory: list[float]) -> tuple[float, str]:
    """Compare the mean of the last fifth with that of the second fifth; the first fifth is warm-up."""
    fifth = max(1, len(memory) // 5)
    early, late = statistics.mean(memory[fifth : 2 * fifth] or memory), statistics.mean(memory[-fifth:])
    return late / early - 1, f"{early / 2**20:.0f} MiB early, {late / 2**20:.0f} MiB late"


def serve_command(options: argparse.Namespace) -> list[str]:
    # The clients send a few photos again and again: unless --options sets a cache, none is answered from it.
    cache = [] if "--cache" in options.options else ["--cache", "0"]
    command = [sys.executable, "-m", "vitrine", "serve", options.model, "--port", "0", *cache]
    return [*command, *computed_by(options), *options.options.split()]


def part_command(what: str, options: argparse.Namespace, *more: str) -> list[str]:
    return [sys.executable, __file__, what, options.model, *computed_by(options), *more]


def computed_by(options: argparse.Namespace) -> list[str]:
    if options.onnx:
        return ["--onnx", options.onnx]
    return [] if options.precision == "fp32" else ["--precision", options.precision]


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


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
