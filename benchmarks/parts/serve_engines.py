"""The server with its engines and its cache beside plain FastAPI, in turns.

`vitrine serve` computes with torch, with the fastest engine in fp32, with the fastest of any precision (checked on
--checked or the photos that are sent), and with that one and the cache.
"""

import argparse
import asyncio
import json
import statistics
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from parts.serve_traffic import Load, clients, read_photos, running

PLAIN = "plain FastAPI"


def engines(options: argparse.Namespace) -> None:
    """Start plain FastAPI and four servers, let them take turns, and print every turn and the medians."""
    photos = read_photos(options.photos)
    serve = [sys.executable, "-m", "vitrine", "serve", options.model, "--port", "0"]
    fastest = [*serve, "--engine", "fastest"]
    checked = [*fastest, "--photos", options.checked or options.photos]
    script = str(Path(__file__).parents[1] / "serve.py")
    commands = {
        PLAIN: [sys.executable, script, "plain-server", options.model],
        "torch": [*serve, "--cache", "0"],
        "fastest in fp32": [*fastest, "--cache", "0"],
        "fastest of any precision": [*checked, "--cache", "0"],
        "fastest of any precision, cache": checked,
    }
    turns: dict[str, list[Load]] = {name: [] for name in commands}
    with ExitStack() as servers:
        places = {name: servers.enter_context(running(command)) for name, command in commands.items()}
        for name, (port, _) in places.items():
            print(f"{name}: {backend_of(port)}", flush=True)
        for number in range(options.rounds):
            for name, (port, pid) in places.items():
                load = asyncio.run(
                    clients(
                        port,
                        photos,
                        number=options.clients,
                        seconds=options.round_seconds,
                        pid=pid,
                        keeps=True,
                    )
                )
                turns[name].append(load)
                print(
                    f"round {number + 1}, {name}: {load.rate:.1f} images/s, {load.processor_ms:.1f} ms of "
                    f"processor time per image, others {100 * load.others:.0f} %, statuses {load.statuses}",
                    flush=True,
                )
    plain = turns.pop(PLAIN)
    for name, loads in turns.items():
        pairs = list(zip(plain, loads, strict=True))
        rate = statistics.median(ours.rate / theirs.rate for theirs, ours in pairs)
        spent = statistics.median(theirs.processor_ms / ours.processor_ms for theirs, ours in pairs)
        print(f"{name}: {rate:.2f} times plain FastAPI by images/s, {spent:.2f} by processor time (medians)")


def backend_of(port: int) -> str:
    """Return what computes a server's model."""
    try:
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/models", timeout=60)
    except OSError:  # the plain one has no such route
        return "torch, fp32, one request at a time"
    return str(json.load(answer)["models"][0]["backend"])
