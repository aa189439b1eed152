"""Choose the engine of a served model at the start, by measured time and by its answers to real photos.

Candidates are torch, onnxruntime and OpenVINO, where they are installed, in fp32; in bf16 and int8 too if there
are photos to check them with. An engine in fp32 must give torch's answers within rounding. One of lower precision may
give another most likely class for at most one photo in a hundred: then it cannot lose more than a point of accuracy.
"""

import hashlib
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from vitrine.checkpoints.record import Record
from vitrine.data.sources.picture_paths import open_pictures
from vitrine.errors import ConfigError, DataError, VitrineError
from vitrine.evaluation.features import weights_hash
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.onnx_graph import require_one_file, write_onnx
from vitrine.exporting.reduced_precision import require_products, write_int8
from vitrine.exporting.runner import OnnxRunner
from vitrine.models import Model
from vitrine.models.dense.model import DenseModel
from vitrine.models.lora import adapters_of
from vitrine.runtime.cache import cache_folder
from vitrine.runtime.progress import notice
from vitrine.serving.predictor import Predictor
from vitrine.serving.served_model import ServedModel
from vitrine.version import __version__

EngineChoice = Literal["auto", "torch", "onnxruntime", "openvino", "fastest"]
Candidate = tuple[str, str]
"""An engine and its precision."""
TORCH: Candidate = ("torch", "fp32")
IN_FP32: tuple[Candidate, ...] = (("onnxruntime", "fp32"), ("openvino", "fp32"))
# OpenVINO ignores ranges that are taken from each batch, and computes such a file in fp32.
REDUCED: tuple[Candidate, ...] = (("torch", "bf16"), ("openvino", "bf16"), ("onnxruntime", "int8"))
BATCH, ROUNDS = 8, 4
# A smaller gain is within the noise of the measurement and not worth a second copy of the weights.
LEAST_GAIN = 0.05
# Maximum difference relative to the largest logit: kernels add in different orders.
ROUNDING = 1e-3
MOST_PHOTOS, FEWEST_PHOTOS = 200, 100
MOST_CHANGED = 0.01


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One candidate: its time, and the reason if it was refused."""

    candidate: Candidate
    milliseconds: float | None = None
    """Time of one core per picture."""
    refusal: str = ""

    def __str__(self) -> str:
        cost = "" if self.milliseconds is None else f" {self.milliseconds:.1f} ms"
        return f"{' '.join(self.candidate)}{cost}{f' ({self.refusal})' if self.refusal else ''}"


@dataclass(kw_only=True)
class EngineTrial:
    """How the models of a server are computed; a reloaded model keeps the engine that was chosen at the start."""

    wanted: EngineChoice
    threads: int
    photos: str | None = None
    """Folder of pictures like those that will be served; needed to try bf16 and int8."""
    chosen: dict[str, Candidate] = field(default_factory=dict)
    """The chosen engine by the model's name."""

    def applied(self, served: ServedModel) -> ServedModel:
        """Return the model as it is served: computed by the requested engine, or by the fastest."""
        if self.wanted in ("auto", "torch"):
            return served
        model, name = served.predictor.model, served.name
        if served.predictor.preprocess.max_patches is not None:
            notice(f"{name} is computed by torch: its pictures keep their own aspect ratio")
            return served
        if served.predictor.device.type != "cpu" or isinstance(model, DenseModel) or adapters_of(model):
            why = "adapters share one backbone" if adapters_of(model) else "it is not a classifier on a CPU"
            notice(f"{name} is computed by torch: {why}")
            return served
        if self.wanted != "fastest":
            return self._built(served, (self.wanted, "fp32"))
        if name in self.chosen:
            return self._again(served)
        return self._fastest(served)

    def _again(self, served: ServedModel) -> ServedModel:
        """Compute new weights by the engine of the earlier ones, or by torch if that fails now."""
        candidate = self.chosen[served.name]
        if candidate == TORCH:
            return served
        try:
            built = self._built(served, candidate)
            refusal = refusal_of(built, served, candidate, self._pictures(served.predictor))
        except VitrineError as error:
            refusal = str(error)
        if refusal:
            notice(f"The new weights of {served.name} are computed by torch: {refusal}")
            return served
        return built

    def _fastest(self, served: ServedModel) -> ServedModel:
        """Try every candidate; take the fastest that is accurate, and report all of them."""
        pictures = self._pictures(served.predictor)
        tried: list[Tried] = []
        built: dict[Candidate, ServedModel] = {TORCH: served}
        for candidate in (*IN_FP32, *(REDUCED if pictures else ())):
            try:
                built[candidate] = self._built(served, candidate)
            except VitrineError as error:
                tried.append(Tried(candidate=candidate, refusal=str(error)))
        costs = costs_of(built)
        best = TORCH
        for candidate in sorted(built, key=costs.__getitem__):
            if candidate == TORCH:
                break
            refusal = refusal_of(built[candidate], served, candidate, pictures)
            if not refusal and costs[candidate] > (1 - LEAST_GAIN) * costs[TORCH]:
                refusal = "no faster than torch"
            if not refusal:
                best = candidate
                break
            tried.append(Tried(candidate=candidate, milliseconds=costs[candidate], refusal=refusal))
        known = {one.candidate for one in tried} | {best}
        tried += [Tried(candidate=one, milliseconds=costs[one]) for one in built if one not in known]
        others = ", ".join(map(str, tried))
        notice(f"Engine of {served.name}: {Tried(candidate=best, milliseconds=costs[best])}; tried: {others}")
        self.chosen[served.name] = best
        return built[best]

    def _built(self, served: ServedModel, candidate: Candidate) -> ServedModel:
        """Let a candidate compute a model."""
        engine, precision = candidate
        predictor = served.predictor
        if engine == "torch":
            lower = Predictor(predictor.loaded, device="cpu", precision="bf16", trust=predictor.trust)
            return served.computed_by(predictor=lower)
        path = graph_of(predictor.model, predictor.loaded.record, in_int8=precision == "int8")
        runner = OnnxRunner(
            path, engine="openvino" if engine == "openvino" else "onnxruntime", is_bf16=precision == "bf16",
            threads=self.threads,
        )  # fmt: skip
        return served.computed_by(graph=runner, precision=precision)

    def _pictures(self, predictor: Predictor) -> list[Tensor]:
        """Return the photos as pixels; empty without photos, or if the model does not predict classes."""
        if self.photos is None or predictor.num_classes is None or predictor.number_name is not None:
            return []
        source, _ = open_pictures([self.photos])
        numbers = range(0) if source is None else spread(len(source))
        pictures = list(readable(predictor, (source.read(number).data for number in numbers if source)))
        if len(pictures) < FEWEST_PHOTOS:
            raise ConfigError(
                f"must hold at least {FEWEST_PHOTOS} pictures, because one in a hundred may change its class; "
                f"{self.photos} holds {len(pictures)}",
                option="photos",
            )
        return pictures


def readable(predictor: Predictor, pictures: Iterable[object]) -> Iterator[Tensor]:
    """Decode the pictures; skip those that cannot be read."""
    for picture in pictures:
        try:
            yield predictor.pixels(picture)  # type: ignore[arg-type]
        except DataError:
            continue


def spread(count: int) -> range:
    """Return the numbers of at most `MOST_PHOTOS` pictures, from the first to the last."""
    return range(0, count, max(1, -(-count // MOST_PHOTOS)))


def costs_of(candidates: Mapping[Candidate, ServedModel]) -> dict[Candidate, float]:
    """Measure the milliseconds of a core per picture, in turns, so that other load slows all engines equally."""
    first = next(iter(candidates.values()))
    preprocess = first.predictor.preprocess
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH, preprocess.channels, *preprocess.size)
    noise = list(torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator))
    costs = dict.fromkeys(candidates, float("inf"))
    for round_number in range(ROUNDS + 1):
        for candidate, served in candidates.items():
            begin = time.process_time()
            served.compute(noise, wanted="features")
            spent = (time.process_time() - begin) / BATCH * 1000
            if round_number:  # the first allocates memory
                costs[candidate] = min(costs[candidate], spent)
    return costs


def refusal_of(
    built: ServedModel, served: ServedModel, candidate: Candidate, pictures: Sequence[Tensor]
) -> str:
    """Return why a candidate is not accurate enough, compared with torch in fp32; empty if it is."""
    wanted: Literal["logits", "features"] = "logits" if served.predictor.num_classes else "features"
    if candidate[1] == "fp32":
        preprocess = served.predictor.preprocess
        blank = torch.full((preprocess.channels, *preprocess.size), 99, dtype=torch.uint8)
        pixels = [blank, *pictures[:2]]
        ours, theirs = (torch.stack(one.compute(pixels, wanted=wanted)) for one in (served, built))
        off = float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-6))
        return "" if off <= ROUNDING else f"answers differ by {off:.2g} of the largest"
    changed = sum(
        int(torch.stack(served.compute(part, wanted=wanted)).argmax(1).ne(
            torch.stack(built.compute(part, wanted=wanted)).argmax(1)
        ).sum())
        for part in (pictures[at : at + BATCH] for at in range(0, len(pictures), BATCH))
    )  # fmt: skip
    if changed <= MOST_CHANGED * len(pictures):
        return ""
    return f"another class for {changed} of {len(pictures)} photos"


def graph_of(model: Model, record: Record, *, in_int8: bool) -> Path:
    """Return the ONNX graph of a model, from the cache or written now."""
    if in_int8:
        require_products(record.config)
    told = f"{__version__} {weights_hash(model, includes_head=True)} {json.dumps(record.to_json(), sort_keys=True)}"
    name = hashlib.sha256(told.encode()).hexdigest()[:32]
    folder = cache_folder() / "engines"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a read-only file system
        folder = Path(tempfile.mkdtemp(prefix="vitrine-engines-"))
    path = folder / f"{name}.onnx"
    if not path.exists():
        notice(f"Writing an ONNX graph to {folder}, once for these weights")
        inference = InferenceModel(model)
        require_one_file(inference)
        write_onnx(inference, path, record=record)
    if not in_int8:
        return path
    smaller = folder / f"{name}.int8.onnx"
    if not smaller.exists():
        write_int8(path, smaller)
    return smaller
