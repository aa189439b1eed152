"""`vitrine serve`: a page and an API round a model, on this machine unless told otherwise."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_doc import Doc

from vitrine.commands import options
from vitrine.commands.arguments import as_path, as_texts
from vitrine.commands.model_or_box import BOX
from vitrine.spelling import counted

if TYPE_CHECKING:
    from vitrine.serving.admission import Limits
    from vitrine.serving.open_models import OpenedModels

KEY_VARIABLE = "VITRINE_API_KEY"
# More inference threads than this bring nothing: each batch then has too few cores.
MOST_WORKERS = 4


@dataclass(frozen=True, kw_only=True)
class ServeResult:
    """What was done between start and stop."""

    address: str
    models: tuple[str, ...]
    pictures: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"Stopped after {self.seconds:.0f} s: {self.pictures:,} picture{'s' * (self.pictures != 1)} computed, "
            "nothing left undone and nothing kept"
        )


def serve(
    models: Annotated[
        str | Path | Sequence[str | Path] | None,
        Doc("One model, or two to compare: run folders (also while they train), weights files, hub ids"),
    ] = None,
    *,
    host: Annotated[
        str, Doc("Address to listen on; 0.0.0.0 accepts other machines and needs a key")
    ] = "127.0.0.1",
    port: Annotated[int, Doc("Port to listen on; 0 takes any free port")] = 8000,
    onnx: Annotated[
        Path | str | None, Doc("ONNX export (file or folder) to run the first model with")
    ] = None,
    engine: Annotated[
        Literal["onnxruntime", "openvino"], Doc("Engine that runs the ONNX file")
    ] = "onnxruntime",
    classifier: Annotated[
        Path | str | None, Doc("Few-shot classifier saved from the page, for the first model")
    ] = None,
    target: Annotated[float, Doc("Target latency in milliseconds; a batch may take half of it")] = 500.0,
    waiting: Annotated[int, Doc("Maximum number of waiting requests; further ones get 429")] = 256,
    max_upload: Annotated[float, Doc("Maximum upload size in MiB")] = 16.0,
    max_pixels: Annotated[
        float, Doc("Maximum size of a JPEG in megapixels; half of it for other formats")
    ] = 50.0,
    timeout: Annotated[float, Doc("Seconds after which a waiting request gets 503")] = 60.0,
    workers: Annotated[
        int | None, Doc("Threads that compute batches [default: one per core, at most 4; 1 on a GPU]")
    ] = None,
    api_key: Annotated[
        str | None, Doc(f"Key that requests must send; safer in the environment variable {KEY_VARIABLE}")
    ] = None,
    answer_as: Annotated[str | None, Doc("Host name of a proxy on this machine to also answer for")] = None,
    precision: options.ModelPrecision = "fp32",
    device: options.Device = "auto",
) -> ServeResult:
    """Serve a web page and an API: predictions, features, attention, few-shot training, live curves."""
    models, onnx, classifier = as_texts(models), as_path(onnx), as_path(classifier)
    from vitrine.runtime.devices import choose_device
    from vitrine.runtime.progress import notice
    from vitrine.serving.guard import LOOPBACK
    from vitrine.serving.open_models import open_models
    from vitrine.serving.server import LOOPBACK_HOSTS, bind

    limits = _limits(
        target=target, waiting=waiting, max_upload=max_upload, max_pixels=max_pixels, timeout=timeout
    )
    key = api_key or os.environ.get(KEY_VARIABLE) or None
    is_on_cpu = choose_device(device).type == "cpu"
    num_workers, threads = _threads(workers, is_on_cpu=is_on_cpu)
    is_loopback = host in LOOPBACK_HOSTS
    hosts = LOOPBACK | ({answer_as.lower()} if answer_as else set()) if is_loopback else None
    with bind(host, port) as socket:
        opened = open_models(
            models or [BOX],
            device=device,
            max_batch=limits.batch,
            threads=threads,
            onnx=onnx,
            engine=engine,
            classifier=classifier,
            precision=precision,
        )
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{socket.getsockname()[1]}"
        if not is_loopback and key is None:
            notice(f"Anyone who reaches {host} can use this server; set {KEY_VARIABLE} to ask for a key")
        begin = time.monotonic()
        pictures = _serve(
            opened, limits=limits, key=key, hosts=hosts, socket=socket,
            address=address, workers=num_workers, threads=threads,
        )  # fmt: skip
    return ServeResult(
        address=address,
        models=opened.names,
        pictures=pictures,
        seconds=time.monotonic() - begin,
    )


def _serve(
    opened: "OpenedModels",
    *,
    limits: "Limits",
    key: str | None,
    hosts: frozenset[str] | None,
    socket: Any,
    address: str,
    workers: int,
    threads: int,
) -> int:
    """Serve until told to stop; return the number of pictures computed."""
    import torch

    from vitrine.data.decoding.decode import quiet_pillow
    from vitrine.runtime.progress import notice
    from vitrine.serving.app import create_app
    from vitrine.serving.batching import keep_freed_memory
    from vitrine.serving.server import make_server
    from vitrine.serving.service import Service

    quiet_pillow()  # what it has to say of a damaged upload, the client hears
    keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    run = opened.run
    service = Service(opened.models, limits=limits, run=run, awaited=opened.awaited, workers=workers)
    try:
        service.warm_up()
        names = " and ".join(each.name for each in opened.models) or "no model before the run's first weights"
        watched = f", run {run.name}" if run is not None else ""
        notice(
            f"Plan: {names}{watched}; {workers} x {counted(threads, 'thread')}, answers aimed at within "
            f"{limits.target_seconds * 1000:.0f} ms, at most {limits.waiting} waiting"
        )
        app = create_app(service, api_key=key, hosts=hosts)
        server = make_server(app, limits=limits, on_stop=service.admission.close)
        notice(f"Serving at {address} (page), {address}/docs (API); Ctrl-C stops")
        server.run(sockets=[socket])
        return service.num_pictures
    finally:
        service.stop()
        torch.set_num_threads(before)


def _limits(*, target: float, waiting: int, max_upload: float, max_pixels: float, timeout: float) -> "Limits":
    from vitrine.serving.admission import MIB, Limits

    upload_bytes = int(max_upload * MIB)
    return Limits(
        target_seconds=target / 1000,
        waiting=waiting,
        upload_bytes=upload_bytes,
        held_bytes=max(Limits.held_bytes, upload_bytes),
        pixels=int(max_pixels * 1_000_000),
        answer_seconds=timeout,
    )


def _threads(workers: int | None, *, is_on_cpu: bool) -> tuple[int, int]:
    """Choose inference threads and torch's threads in each: a core for each batch beats batches that share cores."""
    from vitrine.errors import ConfigError
    from vitrine.runtime.cores import available_cores

    if workers is not None and workers < 1:
        raise ConfigError(f"must be at least 1, got {workers}", option="workers")
    cores = available_cores()
    count = workers or (min(cores, MOST_WORKERS) if is_on_cpu else 1)
    return count, max(1, cores // count)
