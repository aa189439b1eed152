"""From model names to served models: files, hub ids, and runs that may have no weights yet.

A run without weights is opened later: one thread looks at a few files every other second and opens the run once they
have changed. Weights that cannot be read are tried again only after the run has written new ones.
"""

import contextvars
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cosine_similarity

from vitrine.checkpoints import Loaded
from vitrine.checkpoints.bundled import box_on
from vitrine.checkpoints.shared_backbone import Backbones
from vitrine.errors import CheckpointError, ConfigError
from vitrine.evaluation.outputs import Precision
from vitrine.exporting.runner import Engine, OnnxRunner, open_runner
from vitrine.runtime.find_run import LATEST, find_run
from vitrine.runtime.progress import notice
from vitrine.runtime.run_folder import RunFolder
from vitrine.serving.engine_trial import EngineChoice, EngineTrial
from vitrine.serving.fewshot_classifier import with_classifier
from vitrine.serving.live_run import LiveRun, load_unfinished, run_name
from vitrine.serving.predictor import Predictor
from vitrine.serving.served_model import ServedModel

# Minimum cosine similarity of the features from two engines: int8 weights stay above it, different weights do not.
MIN_SIMILARITY = 0.9
MOST_MODELS = 16
# A name before a source: cats=runs/cats.
NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})=(.+)", re.DOTALL)
LOOK_EVERY_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class ModelSlot:
    """One model to serve: its name, its source and the settings to open it."""

    name: str
    source: str
    run: LiveRun | None
    """Set if the source is a training run."""
    is_first: bool
    """Whether this model answers requests that name none."""
    device: str
    precision: Precision
    max_batch: int
    threads: int
    onnx: Path | None
    engine: EngineTrial
    classifier: Path | None
    backbones: Backbones
    """Shared by all models of a server: adapters of the same base model share its weights."""

    def open(self, *, is_fresh: bool = False) -> ServedModel | None:
        """Open the model, or with `is_fresh` read its files again; None if its run has no weights yet."""
        if self.run is None:
            loaded = self.backbones.open(self.source, is_fresh=is_fresh)
        elif self.run.is_finished:
            loaded = self.backbones.open(str(self.run.folder), is_fresh=is_fresh)
        else:
            unfinished = load_unfinished(self.run.folder)
            if unfinished is None:
                return None
            loaded = unfinished
        if self.classifier is not None:
            loaded = with_classifier(loaded, self.classifier)
        if self.onnx is not None:
            return self._with_graph(
                loaded, open_runner(self.onnx, engine=self._onnx_engine, threads=self.threads)
            )
        predictor = Predictor(loaded, device=self.device, precision=self.precision)
        return self.engine.applied(ServedModel(self.name, predictor, max_batch=self.max_batch))

    @property
    def _onnx_engine(self) -> Engine:
        return "openvino" if self.engine.wanted == "openvino" else "onnxruntime"

    def _with_graph(self, loaded: Loaded, graph: OnnxRunner) -> ServedModel:
        """Let an exported graph compute in the model's place, after a check that it computes the same."""
        predictor = Predictor(loaded, device="cpu")
        if graph.preprocess != predictor.preprocess or (loaded.classes and graph.classes != loaded.classes):
            raise CheckpointError(
                f"{graph.path} has another input or other classes than {self.source}; export it again"
            )
        served = ServedModel(self.name, predictor, max_batch=self.max_batch, graph=graph)
        blank = torch.zeros(1, *predictor.preprocess.shape, dtype=torch.uint8)
        ours = predictor.batch(blank, wanted="features")[0]
        theirs = served.compute([blank[0]], wanted="features")[0]
        if ours.shape != theirs.shape or cosine_similarity(ours, theirs, dim=0) < MIN_SIMILARITY:
            raise CheckpointError(
                f"{graph.path} does not compute the same as {self.source}: the features of a blank picture "
                "differ; export it again"
            )
        return served


@dataclass(frozen=True, kw_only=True)
class OpenedModels:
    """The models to serve."""

    names: tuple[str, ...]
    """All models, in the order of their sources."""
    models: tuple[ServedModel, ...]
    awaited: tuple[ModelSlot, ...]
    """Models whose runs have no weights yet."""
    slots: tuple[ModelSlot, ...]
    """How each of them is opened, and opened again."""
    run: LiveRun | None
    """The first source that is a training run: its curves are shown."""


def open_models(
    sources: Sequence[str | Path],
    *,
    device: str,
    max_batch: int,
    threads: int,
    onnx: Path | None = None,
    engine: EngineChoice = "auto",
    photos: str | None = None,
    classifier: Path | None = None,
    precision: Precision = "fp32",
) -> OpenedModels:
    """Open the models to serve; an ONNX graph and a few-shot classifier belong to the first."""
    if not 1 <= len(sources) <= MOST_MODELS:
        raise ConfigError(f"must be 1 to {MOST_MODELS} models, got {len(sources)}", option="models")
    if onnx is not None and precision != "fp32":
        raise ConfigError(
            f"must be fp32 with an ONNX file, which has its own precision, got {precision}",
            option="precision",
        )
    if engine == "fastest" and (onnx is not None or precision != "fp32"):
        raise ConfigError("fastest chooses file and precision itself; leave both out", option="engine")
    if photos is not None and engine != "fastest":
        raise ConfigError("has no effect unless engine is fastest", option="photos")
    trial = EngineTrial(wanted=engine, threads=threads, photos=photos)
    slots: list[ModelSlot] = []
    backbones = Backbones()
    for given in map(str, sources):
        wanted, source = split_name(given)
        run, name = named_source(source)
        if wanted is not None and wanted in {slot.name for slot in slots}:
            raise ConfigError(f"two models are called {wanted}; give each a name of its own", option="models")
        slots.append(
            ModelSlot(
                name=wanted or unused_name(name, {slot.name for slot in slots}),
                source=box_on(source, device=device),
                run=run,
                is_first=not slots,
                device=device,
                precision=precision,
                max_batch=max_batch,
                threads=threads,
                onnx=None if slots else onnx,
                engine=trial,
                classifier=None if slots else classifier,
                backbones=backbones,
            )
        )
    opened = [(slot, slot.open()) for slot in slots]
    return OpenedModels(
        names=tuple(slot.name for slot in slots),
        models=tuple(served for _, served in opened if served is not None),
        awaited=tuple(slot for slot, served in opened if served is None),
        slots=tuple(slots),
        run=next((slot.run for slot in slots if slot.run is not None), None),
    )


def split_name(given: str) -> tuple[str | None, str]:
    """Split `name=source`; an existing file with such a name is a source."""
    match = NAMED.fullmatch(given)
    if match is None or Path(given).expanduser().exists():
        return None, given
    return match[1], match[2]


def unused_name(name: str, used: set[str]) -> str:
    """Return the name, with a number if it is taken."""
    numbered = (f"{name} ({number})" for number in range(2, MOST_MODELS + 1))
    return next(one for one in (name, *numbered) if one not in used)


def named_source(source: str) -> tuple[LiveRun | None, str]:
    """Return the training run that a source is, if it is one, and the name to serve it under."""
    folder = run_folder(source)
    run = None if folder is None else LiveRun(folder)
    return run, name_of(source) if run is None else run.name


def run_folder(source: str) -> Path | None:
    """Return the folder if `source` is a training run."""
    path = Path(source).expanduser()
    if path.name == LATEST and path.parent.is_dir() and not path.exists():
        path = find_run(path).path
    return path if RunFolder(path).is_run else None


def name_of(source: str) -> str:
    """Return the short name under which a model is served."""
    path = Path(source).expanduser()
    if not path.exists():
        return source
    path = path.resolve()
    while path.name in ("model", "model.safetensors", "adapter"):  # the names in every run folder
        path = path.parent
    return run_name(path)


class WeightsWatcher:
    """A thread that opens each awaited model once its run has weights, and ends with the last one."""

    def __init__(
        self, awaited: Sequence[ModelSlot], *, on_weights: Callable[[ModelSlot, ServedModel], None]
    ) -> None:
        self.awaited = tuple(awaited)
        self.on_weights = on_weights
        self._stamps: dict[str, object] = {}
        self._stopping = threading.Event()
        # In this context, so that notices reach the server's listener.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._watch,), name="weights", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, after the model that is being opened."""
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        while self.awaited and not self._stopping.wait(LOOK_EVERY_SECONDS):
            for slot in self.awaited:
                self._look(slot)

    def _look(self, slot: ModelSlot) -> None:
        """Open the model if its run has written weights since the last look."""
        assert slot.run is not None  # only runs can be without weights
        # Before reading, so that files written meanwhile count as new the next time.
        stamp = slot.run.weights_stamp()
        if stamp == self._stamps.get(slot.name, ()):
            return
        self._stamps[slot.name] = stamp
        try:
            served = slot.open()
            if served is None or self._stopping.is_set():
                return
            self.on_weights(slot, served)
        except Exception as error:
            # After any error (out of memory beside the training, for example), the next weights may work.
            notice(f"The weights of {slot.name} cannot be served: {error}")
            return
        self.awaited = tuple(other for other in self.awaited if other is not slot)
        notice(f"{slot.name} has its first weights and is now served")
