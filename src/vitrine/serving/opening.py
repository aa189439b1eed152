"""From what the user names to models in service: files, hub ids, and runs that may have no weights yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cosine_similarity

from vitrine.checkpoints import Loaded, load
from vitrine.errors import CheckpointError, ConfigError
from vitrine.evaluation.outputs import Precision
from vitrine.exporting.runner import Engine, OnnxRunner, open_runner
from vitrine.runtime.find_run import LATEST, find_run
from vitrine.runtime.run_folder import RunFolder
from vitrine.serving.classifier import with_classifier
from vitrine.serving.hosting import Hosted
from vitrine.serving.live_run import LiveRun, load_unfinished
from vitrine.serving.predictor import Predictor

# Least cosine of a picture's features by two engines: coarser weights (int8) stay above it, other weights do not.
SAME = 0.9


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One model's place in service: under which name, from where and how it is opened."""

    name: str
    source: str
    run: LiveRun | None
    """Where the source is a training run."""
    is_first: bool
    """Whether it answers where no model is named."""
    device: str
    precision: Precision
    most: int
    """Pictures in one batch."""
    threads: int
    onnx: Path | None
    engine: Engine
    classifier: Path | None

    def open(self) -> Hosted | None:
        """Open the model; None where its run has no weights so far."""
        if self.run is None:
            loaded = load(self.source)
        elif self.run.is_finished:
            loaded = load(str(self.run.folder))
        else:
            unfinished = load_unfinished(self.run.folder)
            if unfinished is None:
                return None
            loaded = unfinished
        if self.classifier is not None:
            loaded = with_classifier(loaded, self.classifier)
        if self.onnx is not None:
            return self._with_graph(loaded, open_runner(self.onnx, engine=self.engine, threads=self.threads))
        predictor = Predictor(loaded, device=self.device, precision=self.precision)
        return Hosted(self.name, predictor, most=self.most)

    def _with_graph(self, loaded: Loaded, graph: OnnxRunner) -> Hosted:
        """Let an exported graph compute in the model's place, once it is seen to compute the same."""
        predictor = Predictor(loaded, device="cpu")
        if graph.preprocess != predictor.preprocess or (loaded.classes and graph.classes != loaded.classes):
            raise CheckpointError(
                f"{graph.path} has another input or other classes than {self.source}; export it anew"
            )
        hosted = Hosted(self.name, predictor, most=self.most, graph=graph)
        blank = torch.zeros(1, predictor.preprocess.channels, *predictor.preprocess.size, dtype=torch.uint8)
        ours = predictor.batch(blank, wanted="features")[0]
        theirs = hosted.compute([blank[0]], wanted="features")[0]
        if ours.shape != theirs.shape or cosine_similarity(ours, theirs, dim=0) < SAME:
            raise CheckpointError(
                f"{graph.path} does not compute what {self.source} does: the features of a blank picture "
                "differ; export it anew"
            )
        return hosted


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What is there to serve."""

    names: tuple[str, ...]
    """Of all models, in the order in which they were named."""
    models: tuple[Hosted, ...]
    awaited: tuple[Seat, ...]
    """Those whose runs have no weights so far."""
    run: LiveRun | None
    """The first of the sources that is a training run: its curves are shown."""


def open_models(
    sources: Sequence[str],
    *,
    device: str,
    most: int,
    threads: int,
    onnx: Path | None = None,
    engine: Engine = "onnxruntime",
    classifier: Path | None = None,
    precision: Precision = "fp32",
) -> Opened:
    """Open the models that are to be served; a graph and a classifier go with the first."""
    if not 1 <= len(sources) <= 2:
        raise ConfigError(f"one model is served, or two side by side, got {len(sources)}")
    if onnx is not None and precision != "fp32":
        raise ConfigError(
            f"an ONNX file computes in what it was exported in; leave --precision {precision} away"
        )
    seats: list[Seat] = []
    for source in sources:
        folder = run_folder(source)
        run = None if folder is None else LiveRun(folder)
        name = run.name if run is not None else name_of(source)
        seats.append(
            Seat(
                name=f"{name} (2)" if name in {other.name for other in seats} else name,
                source=source,
                run=run,
                is_first=not seats,
                device=device,
                precision=precision,
                most=most,
                threads=threads,
                onnx=None if seats else onnx,
                engine=engine,
                classifier=None if seats else classifier,
            )
        )
    opened = [(seat, seat.open()) for seat in seats]
    return Opened(
        names=tuple(seat.name for seat in seats),
        models=tuple(hosted for _, hosted in opened if hosted is not None),
        awaited=tuple(seat for seat, hosted in opened if hosted is None),
        run=next((seat.run for seat in seats if seat.run is not None), None),
    )


def run_folder(source: str) -> Path | None:
    """Return the folder where `source` names that of a training run."""
    path = Path(source).expanduser()
    if path.name == LATEST and path.parent.is_dir() and not path.exists():
        path = find_run(path).path
    return path if RunFolder(path).is_run else None


def name_of(source: str) -> str:
    """Return the short name that a model is served under."""
    path = Path(source).expanduser()
    if not path.exists():
        return source
    path = path.resolve()
    while path.name in ("model", "model.safetensors"):  # as every run calls them
        path = path.parent
    return path.name
