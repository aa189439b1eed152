"""The work behind `vitrine serve`: models, their service and a web server, until it is stopped."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from vitrine.checkpoints.bundled import BOX, box_on
from vitrine.data.decoding.image_file import quiet_pillow
from vitrine.errors import ConfigError
from vitrine.evaluation.outputs import Precision
from vitrine.runtime.devices import choose_device
from vitrine.runtime.progress import notice, present
from vitrine.runtime.result import Result
from vitrine.runtime.threads import available_cores
from vitrine.serving.admission import MIB, Limits
from vitrine.serving.app import create_app
from vitrine.serving.batching import keep_freed_memory
from vitrine.serving.connections import ListeningSocket
from vitrine.serving.engine_trial import EngineChoice
from vitrine.serving.guard import LOOPBACK, requests_log
from vitrine.serving.open_models import OpenedModels, open_models
from vitrine.serving.opentelemetry import Traces, open_traces
from vitrine.serving.server import LOOPBACK_HOSTS, bind, make_server
from vitrine.serving.service import Service

# More inference threads than this gain nothing: each batch then has too few cores.
MOST_WORKERS = 4


@dataclass(frozen=True, kw_only=True)
class ServePlan:
    """The plan of a server."""

    address: str
    models: tuple[str, ...]
    """Models that answer from the start."""
    run: str | None
    """Training run whose curves are shown."""
    workers: int
    threads: int
    """Per worker."""
    target_seconds: float
    waiting: int


@dataclass(frozen=True, kw_only=True, repr=False)
class ServeResult(Result):
    """Counts of a server from start to stop."""

    address: str
    models: tuple[str, ...]
    pictures: int
    seconds: float


def serve_models(
    models: Sequence[str],
    *,
    host: str,
    port: int,
    onnx: Path | None,
    engine: EngineChoice,
    photos: str | None,
    classifier: Path | None,
    limits: Limits,
    workers: int | None,
    api_key: str | None,
    answer_as: str | None,
    root_path: str,
    log: Path | None,
    traces: str | None,
    cache: float,
    precision: Precision,
    device: str,
) -> ServeResult:
    """Serve models until the process is asked to stop."""
    if cache < 0:
        raise ConfigError(f"must be at least 0, got {cache}", option="cache")
    key = _checked_key(api_key, host=host)
    root_path = _checked_root(root_path)
    num_workers, threads = _threads(workers, is_on_cpu=choose_device(device).type == "cpu")
    with bind(host, port) as socket:
        opened = open_models(
            models or [BOX], device=device, max_batch=limits.batch, threads=threads,
            onnx=onnx, engine=engine, photos=photos, classifier=classifier, precision=precision,
        )  # fmt: skip
        name = f"[{host}]" if ":" in host else host
        plan = ServePlan(
            address=f"http://{name}:{socket.getsockname()[1]}",
            models=tuple(_shown(served.name, device=device) for served in opened.models),
            run=None if opened.run is None else opened.run.name,
            workers=num_workers,
            threads=threads,
            target_seconds=limits.target_seconds,
            waiting=limits.waiting,
        )
        if key is None and host not in LOOPBACK_HOSTS:
            notice(f"Anyone who can reach {host} can use this server: no API key is set")
        begin = time.monotonic()
        hosts = LOOPBACK | ({answer_as.lower()} if answer_as else set()) if host in LOOPBACK_HOSTS else None
        with logging_requests(log), tracing_requests(traces) as tracing:
            pictures = _serve(
                opened, plan, limits=limits, key=key, hosts=hosts, socket=socket, root_path=root_path,
                traces=tracing, cache_bytes=int(cache * MIB),
            )  # fmt: skip
    return ServeResult(
        address=plan.address, models=opened.names, pictures=pictures, seconds=time.monotonic() - begin
    )


def _serve(
    opened: OpenedModels,
    plan: ServePlan,
    *,
    limits: Limits,
    key: str | None,
    hosts: frozenset[str] | None,
    socket: ListeningSocket,
    root_path: str,
    traces: Traces | None,
    cache_bytes: int,
) -> int:
    """Serve until stopped; return the number of pictures computed."""
    quiet_pillow()  # a damaged upload is reported to the client
    keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    service = Service(
        opened.models,
        limits=limits,
        run=opened.run,
        awaited=opened.awaited,
        slots=opened.slots,
        workers=plan.workers,
        cache_bytes=cache_bytes,
    )
    try:
        service.warm_up()
        app = create_app(service, api_key=key, hosts=hosts, root_path=root_path, traces=traces)
        server = make_server(app, limits=limits, on_stop=service.admission.begin_stop)
        present(plan)
        server.run(sockets=[socket])
        return service.num_pictures
    finally:
        service.stop()
        torch.set_num_threads(before)


def serving_limits(
    *, target: float, waiting: int, max_upload: float, max_pixels: float, timeout: float
) -> Limits:
    """Turn the units of the command line (milliseconds, MiB, megapixels) into the server's."""
    options = {"target": target, "waiting": waiting, "max_upload": max_upload, "max_pixels": max_pixels}
    for name, value in {**options, "timeout": timeout}.items():
        if not value > 0:
            raise ConfigError(f"must be above 0, got {value}", option=name)
    upload_bytes = int(max_upload * MIB)
    return Limits(
        target_seconds=target / 1000,
        waiting=waiting,
        upload_bytes=upload_bytes,
        held_bytes=max(Limits.held_bytes, upload_bytes),
        pixels=int(max_pixels * 1_000_000),
        answer_seconds=timeout,
    )


def _shown(name: str, *, device: str) -> str:
    """Return a model's name in the plan; clients may ask for `box` whatever it stands for here."""
    return f"{BOX} ({box_on(BOX, device=device)})" if name == BOX else name


def _checked_key(key: str | None, *, host: str) -> str | None:
    """Return the key, None for an empty one; refuse an empty one where other machines can connect."""
    if key is None or key.strip():
        return key
    if host in LOOPBACK_HOSTS:
        return None
    raise ConfigError(f"is empty, so anyone who can reach {host} could use this server", option="api_key")


def _checked_root(path: str) -> str:
    """Return a proxy's path as /one/two, or nothing."""
    parts = [part for part in path.split("/") if part]
    if any(not part.replace("-", "").replace("_", "").replace(".", "").isalnum() for part in parts):
        raise ConfigError(f"must be a path such as /vitrine, got {path!r}", option="root_path")
    return "".join(f"/{part}" for part in parts)


@contextmanager
def logging_requests(path: Path | None) -> Iterator[None]:
    """Write one line of JSON per request to a file for the block; - is standard error."""
    if path is None:
        yield
        return
    try:
        handler = logging.StreamHandler() if str(path) == "-" else logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {path}: {error.strerror}", option="log") from None
    handler.setFormatter(logging.Formatter("%(message)s"))
    requests_log.addHandler(handler)
    before, passes_on = requests_log.level, requests_log.propagate
    requests_log.setLevel(logging.INFO)
    requests_log.propagate = False
    try:
        yield
    finally:
        requests_log.setLevel(before)
        requests_log.propagate = passes_on
        requests_log.removeHandler(handler)
        handler.close()


@contextmanager
def tracing_requests(address: str | None) -> Iterator[Traces | None]:
    """Send traces to a collector for the length of the block, if one is given."""
    if address is None:
        yield None
        return
    if not address.startswith(("http://", "https://")):
        raise ConfigError(
            f"must be the address of a collector such as http://127.0.0.1:4318, got {address!r}",
            option="traces",
        )
    traces = open_traces(address)
    try:
        yield traces
    finally:
        traces.close()


def _threads(workers: int | None, *, is_on_cpu: bool) -> tuple[int, int]:
    """Choose the inference threads and torch's threads in each: one core per batch beats batches that share cores."""
    if workers is not None and workers < 1:
        raise ConfigError(f"must be at least 1, got {workers}", option="workers")
    cores = available_cores()
    count = workers or (min(cores, MOST_WORKERS) if is_on_cpu else 1)
    return count, max(1, cores // count)
