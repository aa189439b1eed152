"""The memory of several adapted models behind one server: over one backbone, and merged."""

import argparse
import sys
import tempfile
import urllib.request
from pathlib import Path

from parts.serve_traffic import PAGE_BYTES, running

RANK = 16


def adapters(options: argparse.Namespace) -> None:
    """Start a server with a model and adapters of it, then with the same ones merged; print both memories."""
    count = options.count or 4
    with tempfile.TemporaryDirectory() as folder:
        names = written(Path(folder), options.model, size=options.side or 224, count=count)
        for kind in ("adapter", "merged"):
            sources = [f"base={folder}/base", *(f"{name}={folder}/{name}-{kind}" for name in names)]
            command = [sys.executable, "-m", "vitrine", "serve", *sources, "--port", "0"]
            with running(command) as (port, pid):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=60)
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                print(f"1 model and {count} {kind}: {pages * PAGE_BYTES / 2**20:.0f} MiB", flush=True)


def written(folder: Path, variant: str, *, size: int, count: int) -> list[str]:
    """Write a model with random weights, adapters of it, and the same adapters merged."""
    import torch

    import vitrine
    from vitrine.checkpoints.adapters import write_adapter
    from vitrine.models.lora import adapters_of, add_adapters, merge_adapters

    base = folder / "base"
    vitrine.save(vitrine.create_model(variant, image_size=size, num_classes=10), base)
    names = [f"a{number}" for number in range(count)]
    for name in names:
        loaded = vitrine.load(base)
        add_adapters(loaded.model, rank=RANK)
        for layer in adapters_of(loaded.model).values():
            torch.nn.init.normal_(layer.lora_b, std=0.01)
        write_adapter(loaded.model, folder / f"{name}-adapter", base=str(base), record=loaded.record)
        merge_adapters(loaded.model)
        vitrine.save(loaded.model, folder / f"{name}-merged")
    return names
