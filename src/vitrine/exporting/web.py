"""A model as a folder that any static host can show: the page, the graph, and onnxruntime-web, which runs it.

The graph also returns the attention of all layers. Its weights are stored in half precision and used in single
precision.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrine.checkpoints.loading import Loaded
from vitrine.checkpoints.tensors import TRUST_FILE
from vitrine.checkpoints.writing import write_json
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError, TryOption
from vitrine.evaluation.familiarity import PASSED
from vitrine.exporting.exported import Export, Exported, Subject, answer_of
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.onnx_graph import check_file, require_one_file, require_onnx, write_onnx
from vitrine.exporting.onnxruntime_web import copy_into, find_onnxruntime_web
from vitrine.exporting.reduced_precision import require_products, store_in_fp16, write_int8
from vitrine.exporting.runner import open_runner
from vitrine.models import Model, ViT
from vitrine.page import offline_files
from vitrine.runtime.progress import track
from vitrine.version import __version__

MODEL_FILE, PAGE_FILE = "model.onnx", "index.html"
ATTENTION_BYTES = 2**27
"""Limit for the attention of one picture in all layers: browsers on phones have little memory."""
ID_MARK = b"EXPORT_ID"


@dataclass(frozen=True, kw_only=True)
class PageFacts:
    """The facts about a model on the page."""

    entry: Mapping[str, Any]
    """The model's entry in the server's /models."""
    figures: Mapping[str, Any]
    """Filters and positions, as in the server's /figures."""


def plan_web(
    loaded: Loaded, *, facts: Callable[[], PageFacts], int8: bool, onnxruntime_web: Path | None
) -> Export:
    """Check that a browser can prepare images for the model; return the function that writes the folder."""
    require_onnx()
    if loaded.record.number:
        raise ConfigError(
            "the page shows classes, and this model predicts a number",
            option="to",
            advice=[TryOption("to", "to write a graph", "onnx")],
        )
    require_known_pixels(loaded.preprocess)
    if int8:
        require_products(loaded.record.config)
    attention = attention_of(loaded.model)
    model = InferenceModel(loaded.model, with_attention=attention is not None)
    require_one_file(model)
    runtime = find_onnxruntime_web(onnxruntime_web)

    def write(folder: Path) -> Exported:
        precision = "int8" if int8 else "fp16"
        graph = folder / MODEL_FILE
        for _ in track([graph], "Writing ONNX"):
            write_graph(model, graph, loaded=loaded, int8=int8)
        known = facts()
        has_trust = loaded.folder is not None and (loaded.folder / TRUST_FILE).is_file()
        described = {
            "name": known.entry["name"],
            "file": MODEL_FILE,
            "precision": precision,
            "preprocess": loaded.preprocess.to_json(),
            "attention": attention,
            "trust": TRUST_FILE if has_trust else None,
            "passed": PASSED,
            "entry": dict(known.entry),
            "version": __version__,
        }
        write_json(folder / "model.json", described)
        write_json(folder / "figures.json", dict(known.figures))
        pages = write_page(folder, graph, runtime, has_trust=has_trust)
        runner = open_runner(graph)
        notes = ["the sizes above do not include the page and onnxruntime-web"]
        if isinstance(loaded.model, ViT) and attention is None:
            notes.append("the attention of this model is too large for browsers: the page shows none")
        return Exported(
            files=(graph,),
            settings=(folder / "model.json", folder / "figures.json", *pages),
            subjects=(
                Subject(name=runner.version, precision=precision, answer=answer_of(runner), file=graph),
            ),
            notes=tuple(notes),
        )

    return write


def write_graph(model: InferenceModel, graph: Path, *, loaded: Loaded, int8: bool) -> None:
    """Write the graph in its smaller form."""
    write_onnx(model, graph, record=loaded.record)
    if int8:
        write_int8(graph, graph)
    store_in_fp16(graph, graph)
    check_file(graph)


def write_page(folder: Path, graph: Path, runtime: dict[str, bytes], *, has_trust: bool) -> tuple[Path, ...]:
    """Write the page's files and onnxruntime-web, and the list of files that a browser caches for offline use."""
    pages = offline_files()
    libraries = {f"onnxruntime-web/{name}": data for name, data in runtime.items()}
    kept = [name for name in (*pages, *libraries) if ".jspi." not in name and not name.endswith(".py")]
    kept += [MODEL_FILE, "model.json", "figures.json", *([TRUST_FILE] if has_trust else [])]
    write_json(folder / "files.json", sorted(kept))
    digest = hashlib.sha256(graph.read_bytes())
    for data in (*pages.values(), *libraries.values(), (folder / "model.json").read_bytes()):
        digest.update(data)
    worker = "service-worker.js"
    pages[worker] = pages[worker].replace(ID_MARK, digest.hexdigest()[:16].encode())
    copy_into({**pages, **libraries}, folder)
    return tuple(folder / name for name in (PAGE_FILE, "start.py", "page", "onnxruntime-web", "files.json"))


def attention_of(model: Model) -> dict[str, Any] | None:
    """Describe the attention of all layers for the page; None without attention, or if it is too large."""
    if not isinstance(model, ViT):
        return None
    config = model.config
    rows, columns = config.grid_size
    heads = config.num_branches * config.num_heads
    tokens = rows * columns + model.num_leading_tokens
    if config.depth * heads * tokens**2 * 4 > ATTENTION_BYTES:
        return None
    return {
        "layers": config.depth,
        "heads": heads,
        "first": model.num_leading_tokens,
        "grid": [rows, columns],
        "stride": list(config.token_stride),
        "reads_class_token": config.reads_class_token,
    }


def require_known_pixels(preprocess: Preprocess) -> None:
    """Refuse an input that a browser cannot prepare from a photo."""
    if preprocess.channels not in (1, 3):
        raise ConfigError(
            f"web supports models with 1 or 3 channels, this model has {preprocess.channels}",
            option="to",
            advice=[TryOption("to", "to write a graph for onnxruntime", "onnx")],
        )
