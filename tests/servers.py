"""A server for tests: small models behind a real socket, in a thread of this process."""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pictures import photo
from PIL import Image

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import create_model
from vitrine.serving.admission import Limits
from vitrine.serving.app import create_app
from vitrine.serving.guard import LOOPBACK
from vitrine.serving.live_run import LiveRun
from vitrine.serving.open_models import ModelSlot, open_models
from vitrine.serving.served_model import ServedModel
from vitrine.serving.server import Server, bind, make_server
from vitrine.serving.service import Service

CLASSES = ("cat", "dog", "owl", "fox", "newt", "hare")
SIZE = 32


def small_vit(
    *, seed: int = 0, num_classes: int | None = len(CLASSES), size: int = SIZE, **options: object
) -> torch.nn.Module:
    """Make a ViT of two layers and two heads on 4 x 4 patches whose answers differ from picture to picture."""
    torch.manual_seed(seed)
    shape = {"width": 32, "depth": 2, "num_heads": 2, "mlp_width": 48, "patch_size": size // 4}
    model = create_model("ViT", image_size=size, num_classes=num_classes, **(shape | options))  # type: ignore[arg-type]
    if num_classes:
        torch.nn.init.normal_(model.head.weight)
    return model.eval()


def saved_vit(folder: Path, *, seed: int = 0, rule: str = "shorter", size: int = SIZE) -> Path:
    """Save one with names for its classes."""
    preprocess = Preprocess(size=(size, size), rule=rule, crop_fraction=0.875, interpolation="bicubic")  # type: ignore[arg-type]
    vitrine.save(small_vit(seed=seed, size=size), folder, preprocess=preprocess, classes=CLASSES)  # type: ignore[arg-type]
    return folder


def encoded(pixels: np.ndarray, kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def jpeg(seed: int = 0, height: int = 60, width: int = 80) -> bytes:
    return encoded(photo(seed, height, width), quality=92)


@dataclass
class Running:
    """A server that answers, and what is in it."""

    address: str
    port: int
    service: Service
    server: Server


@contextmanager
def serving(
    models: Sequence[str | Path | ServedModel],
    *,
    limits: Limits | None = None,
    run: LiveRun | None = None,
    api_key: str | None = None,
    workers: int = 1,
    hosts: frozenset[str] | None = LOOPBACK,
    root_path: str = "",
    traces: Any = None,
    cache_bytes: int = 0,
) -> Iterator[Running]:
    """Serve for the block on a free port of this machine, then stop."""
    limits = limits or Limits()
    awaited: tuple[ModelSlot, ...] = ()
    slots: tuple[ModelSlot, ...] = ()
    if all(isinstance(model, ServedModel) for model in models):
        hosted = list(models)
    else:
        opened = open_models([str(model) for model in models], device="cpu", max_batch=8, threads=1)
        hosted, awaited, slots = list(opened.models), opened.awaited, opened.slots
        run = run or opened.run
    service = Service(
        hosted,
        limits=limits,
        run=run,
        awaited=awaited,
        slots=slots,
        workers=workers,  # type: ignore[arg-type]
        cache_bytes=cache_bytes,
    )
    service.warm_up()
    try:
        app = create_app(service, api_key=api_key, hosts=hosts, root_path=root_path, traces=traces)
        with serving_app(app, limits=limits, on_stop=service.admission.begin_stop) as (port, server):
            yield Running(f"http://127.0.0.1:{port}", port, service, server)
    finally:
        service.stop()


@contextmanager
def serving_app(app: Any, *, limits: Limits, **options: Any) -> Iterator[tuple[int, Server]]:
    """Serve any ASGI application for the block; give its port and the server, which must stop afterwards."""
    with bind("127.0.0.1", 0) as opened:
        server = make_server(app, limits=limits, **options)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
        thread.start()
        port = opened.getsockname()[1]
        until(lambda: server.started or not thread.is_alive())
        assert thread.is_alive(), "the server does not start"
        try:
            yield port, server
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the server does not stop"


def until(holds: Callable[[], Any], *, seconds: float = 20) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.005)


def raw(port: int, data: bytes, *, seconds: float = 10, then_close: bool = False) -> bytes:
    """Send bytes as they are and read until the other side closes or falls silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        try:
            connection.sendall(data)
            if then_close:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass
        parts = []
        while True:
            try:
                part = connection.recv(65536)
            except (TimeoutError, ConnectionResetError):
                break
            if not part:
                break
            parts.append(part)
            if b"\r\n\r\n" in b"".join(parts) and _is_whole(b"".join(parts)):
                break
    return b"".join(parts)


def _is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return False
