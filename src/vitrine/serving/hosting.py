"""One model in service: what it is called, what it is, and the tasks that the batcher runs on it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from vitrine.checkpoints import Loaded, load
from vitrine.errors import CheckpointError, ConfigError
from vitrine.evaluation.outputs import Precision
from vitrine.exporting.runner import Engine, OnnxRunner, open_runner
from vitrine.models import ViTConfig
from vitrine.runtime.run_folders import LATEST, find_run
from vitrine.serving.batching import Task
from vitrine.serving.classifier import representation_width, with_classifier
from vitrine.serving.explaining import explain, figures_of
from vitrine.serving.live_run import METRICS, LiveRun, load_unfinished
from vitrine.serving.predictor import Predictor, Wanted

# Least cosine of a picture's features by two engines: coarser weights (int8) stay above it, other weights do not.
SAME = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """A picture to explain, and how closely."""

    pixels: Tensor
    layers: tuple[int, ...]
    with_matrix: bool


class Hosted:
    """A predictor under a name, with its tasks; `graph` computes in its place where it can."""

    def __init__(
        self, name: str, predictor: Predictor, *, most: int, graph: OnnxRunner | None = None
    ) -> None:
        self.name, self.predictor, self.graph = name, predictor, graph
        self.logits = Task(name="logits", run=lambda items: self.compute(items, wanted="logits"), most=most)
        self.features = Task(
            name="features", run=lambda items: self.compute(items, wanted="features"), most=most
        )
        # A picture's attention is several times its forward pass in memory, so one at a time.
        self.explanation = Task(name="explanation", run=self.explain, most=1)
        self._figures: dict[str, Any] | None = None

    @property
    def has_attention(self) -> bool:
        """Whether there is attention to look at."""
        return isinstance(self.predictor.model.config, ViTConfig)

    @property
    def depth(self) -> int:
        """Number of layers with attention."""
        config = self.predictor.model.config
        return config.depth if isinstance(config, ViTConfig) else 0

    def pixels(self, data: bytes, *, max_pixels: int) -> Tensor:
        """Decode one upload to the model's size: (C, height, width) uint8."""
        preprocess = self.predictor.preprocess
        return preprocess.pixels(preprocess.decode(data, name="the picture", max_pixels=max_pixels))

    def compute(self, items: Sequence[Tensor], *, wanted: Wanted) -> list[Tensor]:
        """Map pictures (C, height, width) to a row of logits or features each."""
        pixels = torch.stack(list(items))
        if self.graph is None:
            return list(self.predictor.batch(pixels, wanted=wanted))
        answers = self.graph(self.predictor.preprocess.normalise(pixels).numpy())
        rows = answers.embedding if wanted == "features" else answers.logits
        assert rows is not None  # /predict asks no model without a head
        return list(torch.from_numpy(rows))

    def explain(self, wishes: Sequence[Wish]) -> list[dict[str, Any]]:
        """Explain pictures one by one."""
        return [
            explain(self.predictor, wish.pixels, layers=wish.layers, with_matrix=wish.with_matrix)
            for wish in wishes
        ]

    def figures(self) -> dict[str, Any]:
        """Return what needs no picture, worked out once."""
        if self._figures is None:
            self._figures = figures_of(self.predictor.model, image_size=self.predictor.preprocess.size)
        return self._figures

    def described(self) -> dict[str, Any]:
        """Say what the model is."""
        predictor, config = self.predictor, self.predictor.model.config
        size = predictor.preprocess.size
        attention = config if isinstance(config, ViTConfig) else None
        stride = attention.token_stride if attention else None
        return {
            "name": self.name,
            "variant": predictor.loaded.record.variant,
            "backend": f"torch, {predictor.precision}" if self.graph is None else self.graph.version,
            "image_size": list(size),
            "rule": predictor.preprocess.rule,
            "crop_fraction": predictor.preprocess.crop_fraction,
            "classes": list(predictor.classes) if predictor.num_classes else None,
            "width": representation_width(predictor.model),
            "parameters": sum(weight.numel() for weight in predictor.model.parameters()),
            "grid": [side // step for side, step in zip(size, stride, strict=True)] if stride else None,
            "patch": list(stride) if stride else None,
            "num_layers": attention.depth if attention else None,
            "num_heads": attention.num_heads if attention else None,
            "is_multi_label": predictor.is_multi_label,
            "notes": list(predictor.loaded.notes),
        }


def open_hosted(
    sources: Sequence[str],
    *,
    device: str,
    most: int,
    threads: int,
    onnx: Path | None = None,
    engine: Engine = "onnxruntime",
    classifier: Path | None = None,
    precision: Precision = "fp32",
) -> tuple[list[Hosted], LiveRun | None]:
    """Open the models that are to be served, and the run whose curves are shown if one is a run folder."""
    if not 1 <= len(sources) <= 2:
        raise ConfigError(f"one model is served, or two side by side, got {len(sources)}")
    if onnx is not None and precision != "fp32":
        raise ConfigError(
            f"an ONNX file computes in what it was exported in; leave --precision {precision} away"
        )
    found: list[Hosted] = []
    run: LiveRun | None = None
    for number, source in enumerate(sources):
        folder = run_folder(source)
        if folder is not None and run is None:
            run = LiveRun(folder)
        loaded = None if folder is None or LiveRun(folder).is_finished else load_unfinished(folder)
        if loaded is None:
            if folder is not None and not LiveRun(folder).is_finished:
                continue  # it has saved nothing yet, so there are its curves only
            loaded = load(source)
        if classifier is not None and number == 0:
            loaded = with_classifier(loaded, classifier)
        if onnx is not None and number == 0:
            found.append(
                _with_graph(loaded, source, open_runner(onnx, engine=engine, threads=threads), most=most)
            )
            continue
        predictor = Predictor(loaded, device=device, precision=precision)
        found.append(Hosted(unique(name_of(source), found), predictor, most=most))
    if not found and run is None:
        raise CheckpointError(f"{sources[0]} holds nothing that can be served")
    return found, run


def _with_graph(loaded: Loaded, source: str, graph: OnnxRunner, *, most: int) -> Hosted:
    """Let an exported graph compute in the model's place, once it is seen to compute the same."""
    predictor = Predictor(loaded, device="cpu")
    if graph.preprocess != predictor.preprocess or (loaded.classes and graph.classes != loaded.classes):
        raise CheckpointError(
            f"{graph.path} has another input or other classes than {source}; export it anew"
        )
    hosted = Hosted(name_of(source), predictor, most=most, graph=graph)
    blank = torch.zeros(1, predictor.preprocess.channels, *predictor.preprocess.size, dtype=torch.uint8)
    ours = predictor.batch(blank, wanted="features")[0]
    theirs = hosted.compute([blank[0]], wanted="features")[0]
    if ours.shape != theirs.shape or cosine_similarity(ours, theirs, dim=0) < SAME:
        raise CheckpointError(
            f"{graph.path} does not compute what {source} does: the features of a blank picture differ; "
            "export it anew"
        )
    return hosted


def run_folder(source: str) -> Path | None:
    """Return the folder where `source` names that of a training run."""
    path = Path(source).expanduser()
    if path.name == LATEST and path.parent.is_dir() and not path.exists():
        path = find_run(path)
    return path if (path / "run.json").exists() and (path / METRICS).parent.is_dir() else None


def name_of(source: str) -> str:
    """Return the short name that a model is served under."""
    path = Path(source).expanduser()
    if not path.exists():
        return source
    path = path.resolve()
    while path.name in ("model", "model.safetensors"):  # as every run calls them
        path = path.parent
    return path.name


def unique(name: str, others: Sequence[Hosted]) -> str:
    """Return the name, with a number where another model has it already."""
    return f"{name} (2)" if name in {other.name for other in others} else name
