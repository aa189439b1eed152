"""What the server is compared with: the model alone, and the same model behind plain FastAPI."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from parts.serve_traffic import busy_seconds

if TYPE_CHECKING:
    from vitrine.serving.served_model import ServedModel


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
    speeds = [rate(*way, seconds=options.round_seconds / 2) for way in ways]
    # By CPU time, which other work on the machine changes least.
    best = min(range(len(ways)), key=lambda number: speeds[number]["ms"])
    threads, workers, batch, _ = ways[best]
    print(f"model alone: {workers} x {threads} threads, batches of {batch}", flush=True)
    for _ in sys.stdin:
        print(json.dumps(rate(*ways[best], seconds=options.round_seconds)), flush=True)


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


def opened(options: argparse.Namespace, *, threads: int) -> "ServedModel":
    """Open the model as the server does."""
    from vitrine.serving.open_models import open_models

    onnx = Path(options.onnx) if options.onnx else None
    [hosted] = open_models(
        [options.model], device="cpu", max_batch=32, threads=threads, onnx=onnx, precision=options.precision
    ).models
    return hosted
