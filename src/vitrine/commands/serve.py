"""`vitrine serve`: a web page and an API for a model, on this machine by default."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_path, as_texts

if TYPE_CHECKING:
    from vitrine.jobs.serve import ServeResult

KEY_VARIABLE = "VITRINE_API_KEY"


@documented
def serve(
    models: Annotated[
        str | Path | Sequence[str | Path] | None,
        Doc("Models, also as name=model: run folders (also while they train), weights files, hub ids"),
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
        Literal["auto", "torch", "onnxruntime", "openvino", "fastest"],
        Doc(
            "What computes the models; fastest is chosen by a trial [default: torch; onnxruntime with --onnx]"
        ),
    ] = "auto",
    photos: Annotated[
        Path | str | None,
        Doc("Pictures to check the fastest engine with, 100 or more: allows bf16 and int8"),
    ] = None,
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
        str | None,
        Doc(
            f"Key that requests must send, or several, as a,b; safer in the environment variable {KEY_VARIABLE}"
        ),
    ] = None,
    answer_as: Annotated[str | None, Doc("Host name of a proxy on this machine to also answer for")] = None,
    root_path: Annotated[str, Doc("Path below which a proxy shows the server, such as /vitrine")] = "",
    log: Annotated[
        Path | str | None, Doc("File for one line of JSON per request, with its id; - is standard error")
    ] = None,
    traces: Annotated[
        str | None,
        Doc("OpenTelemetry collector to send a trace of each request to, such as http://127.0.0.1:4318"),
    ] = None,
    cache: Annotated[
        float, Doc("MiB of answers to keep, so that the same picture is computed once; 0 keeps none")
    ] = 32.0,
    precision: options.ModelPrecision = "fp32",
    device: options.Device = "auto",
) -> "ServeResult":
    """Serve a web page and an API: predictions, features, attention, few-shot training, live curves."""
    from vitrine.jobs.serve import serve_models, serving_limits

    return serve_models(
        as_texts(models),
        host=host,
        port=port,
        onnx=as_path(onnx),
        engine=engine,
        photos=None if photos is None else str(photos),
        classifier=as_path(classifier),
        limits=serving_limits(
            target=target, waiting=waiting, max_upload=max_upload, max_pixels=max_pixels, timeout=timeout
        ),
        workers=workers,
        api_key=os.environ.get(KEY_VARIABLE) if api_key is None else api_key,
        answer_as=answer_as,
        root_path=root_path,
        log=as_path(log),
        traces=traces,
        cache=cache,
        precision=precision,
        device=device,
    )
