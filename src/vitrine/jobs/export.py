"""The work behind `vitrine export`: a model in another format, compared with the original and timed."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitrine.checkpoints import Loaded, load
from vitrine.checkpoints.loading import as_squares
from vitrine.checkpoints.tensors import TRUST_FILE
from vitrine.checkpoints.writing import write_json, write_text
from vitrine.data.sources.source import Source
from vitrine.exporting.card import write_card
from vitrine.exporting.comparison import Timing, prove, time_in_batches
from vitrine.exporting.dense_model import require_dense_target
from vitrine.exporting.exported import Exported, Kind, size_of
from vitrine.exporting.proof import Accuracy, Agreement, measure_accuracy
from vitrine.exporting.runner import FILES as ONNX_FILES
from vitrine.exporting.web import PageFacts
from vitrine.exporting.worth import Refusal, refusal_lines, refuse_copies, without_refused
from vitrine.jobs.export_inputs import NUM_CALIBRATION, given_pixels, labelled_source, proof_pixels
from vitrine.jobs.export_targets import ExportWish, plan_wish
from vitrine.jobs.model_argument import named_model
from vitrine.models import ViTConfig
from vitrine.models.dense.config import DenseConfig
from vitrine.runtime.files import write_atomically
from vitrine.runtime.output_folder import new_output_folder
from vitrine.runtime.progress import present
from vitrine.runtime.result import Result
from vitrine.serving.open_models import name_of
from vitrine.serving.predictor import Predictor
from vitrine.serving.served_model import ServedModel

__all__ = ["ExportPlan", "ExportResult", "ExportWish", "export_model"]
FILES = (
    "export.json",
    "config.json",
    "onnx",
    *ONNX_FILES.values(),
    "model.pt2",
    "model.npz",
    "model.safetensors",
    "model.pte",
    "model.tflite",
    "model.mlpackage",
)


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """The plan of an export, and the images on which it is compared with the model."""

    model: str
    to: Kind
    num_images: int
    images: str
    """Given, generated or random."""
    folder: Path


@dataclass(frozen=True, kw_only=True, repr=False)
class ExportResult(Result):
    """The files of an export, how well they agree with the model, their size and speed."""

    model: str
    to: Kind
    folder: Path
    sizes: dict[str, int]
    """Bytes of each file of weights; `torch` is the model as it is in memory."""
    images: str
    """Given or generated: what the proof was made on."""
    proof: tuple[Agreement, ...]
    accuracy: tuple[Accuracy, ...]
    timings: tuple[Timing, ...]
    refused: tuple[Refusal, ...]
    """Copies that are slower than fp32 or lose more than a point; they were removed."""
    threads: int
    notes: tuple[str, ...]
    wrote: tuple[Path, ...]

    @property
    def exit_code(self) -> int:
        """1 if an export differs without a known reason, or a copy was refused."""
        differs = any(check.agrees is False and not check.explained for check in self.proof)
        return int(differs or bool(self.refused))


def export_model(
    model: str,
    *,
    wish: ExportWish,
    out: Path | None,
    images: Sequence[str],
    count: int,
    data: str | None,
    split: str | None,
    is_by_order: bool,
    image_size: int | None,
    measures_speed: bool,
    workers: int,
    is_overwriting: bool,
) -> ExportResult:
    """Write the model, compare it with the original and time both."""
    model = named_model(model, device="cpu")  # where exports are compared
    loaded = _loaded(as_squares(load(model, image_size=image_size), purpose="export"))
    require_dense_target(loaded.model, to=wish.to, data=data)
    write = plan_wish(
        loaded,
        wish,
        facts=lambda: page_facts(loaded, model),
        calibration=lambda: (
            given_pixels(
                loaded, wish.calibrate, count=NUM_CALIBRATION, workers=workers, option="calibrate"
            ).rows
        ),
    )
    pixels = proof_pixels(loaded, images, count=count, workers=workers)
    source = None if data is None else labelled_source(loaded, model, data, split, by_order=is_by_order)
    never_in = [*pixels.folders, *([source.root] if source is not None and source.root is not None else [])]
    folder = new_output_folder(
        out, verb="export", files=FILES, never_in=never_in, is_overwriting=is_overwriting
    )
    present(
        ExportPlan(model=model, to=wish.to, num_images=len(pixels.rows), images=pixels.kind, folder=folder)
    )
    exported = write(folder)
    measured = _measured(
        loaded, exported, pixels.rows, source, measures_speed=measures_speed, workers=workers
    )
    refused = () if wish.allows_loss else refuse_copies(exported, measured.timings, measured.accuracy)
    kept = without_refused(exported, refused)
    weights = sum(one.numel() * one.element_size() for one in loaded.model.parameters())
    result = ExportResult(
        model=model,
        to=wish.to,
        folder=folder,
        sizes={"torch": weights, **{path.name: size_of(path) for path in kept.files}},
        images=pixels.kind,
        proof=measured.proof,
        accuracy=measured.accuracy,
        timings=measured.timings,
        refused=refused,
        threads=torch.get_num_threads(),
        notes=(*loaded.notes, *exported.notes, *_advice(wish, has_data=data is not None, loaded=loaded)),
        wrote=(),
    )
    return _written(loaded, kept, result)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The agreement, accuracy and speed of an export."""

    proof: tuple[Agreement, ...]
    accuracy: tuple[Accuracy, ...]
    timings: tuple[Timing, ...]


def _measured(
    loaded: Loaded,
    exported: Exported,
    pixels: Tensor,
    source: Source | None,
    *,
    measures_speed: bool,
    workers: int,
) -> Measured:
    accuracy: tuple[Accuracy, ...] = ()
    proof = prove(loaded.model, exported.subjects, pixels)
    if source is not None:
        others = [(s.name, s.precision, s.answer) for s in exported.subjects if s.answer is not None]
        accuracy = measure_accuracy(
            loaded.model, others, source, preprocess=loaded.preprocess, num_workers=workers
        )
    timings = time_in_batches(loaded.model, exported.subjects, pixels) if measures_speed else ()
    return Measured(proof=proof, accuracy=accuracy, timings=timings)


def _loaded(loaded: Loaded) -> Loaded:
    """Fix the size of the preprocessing to the size of the model; the graph supports no other."""
    preprocess = loaded.preprocess.with_size(loaded.model.config.image_size)
    record = dataclasses.replace(loaded.record, preprocess=preprocess)
    return dataclasses.replace(loaded, preprocess=preprocess, record=record)


def page_facts(loaded: Loaded, model: str) -> PageFacts:
    """Describe the model to the page as a server would."""
    served = ServedModel(name_of(model), Predictor(loaded, device="cpu"), max_batch=1)
    figures = {"model": served.name, **served.figures()}
    return PageFacts(entry=served.described(), figures=figures)


def _advice(wish: ExportWish, *, has_data: bool, loaded: Loaded) -> list[str]:
    notes = []
    is_int8 = wish.int8 or bool(wish.calibrate)
    if (wish.fp16 or is_int8) and not has_data and not isinstance(loaded.model.config, DenseConfig):
        notes.append("the accuracy of fp16 and int8 was not measured; it needs labelled data")
    config = loaded.model.config
    if is_int8 and isinstance(config, ViTConfig) and config.stem is not None:
        notes.append("int8: the convolutions of the hybrid stay in fp32, its transformer is int8")
    return notes


def _written(loaded: Loaded, exported: Exported, result: ExportResult) -> ExportResult:
    """Write names, preprocessing, card and the proof beside the files."""
    folder, record = result.folder, loaded.record
    write_json(folder / "preprocess.json", record.preprocess.to_json())
    small = [folder / "preprocess.json"]
    if record.classes:
        write_json(folder / "classes.json", list(record.classes))
        small.append(folder / "classes.json")
    card = write_card(
        record,
        to=result.to,
        proof=result.proof,
        accuracy=result.accuracy,
        notes=(*result.notes, *refusal_lines(result.refused)),
        folder=folder.name,
    )
    write_text(folder / "README.md", card)
    proof = dataclasses.asdict(result)
    del proof["wrote"], proof["folder"]
    write_json(folder / "export.json", proof)
    small += _copied_trust(loaded, folder)
    wrote = (*exported.files, *exported.settings, *small, folder / "README.md", folder / "export.json")
    return dataclasses.replace(result, wrote=wrote)


def _copied_trust(loaded: Loaded, folder: Path) -> list[Path]:
    """Copy the statistics of "none of these": any program can compute it from them and the embedding."""
    if loaded.folder is None or not (loaded.folder / TRUST_FILE).is_file():
        return []
    with write_atomically(folder / TRUST_FILE) as file:
        file.write((loaded.folder / TRUST_FILE).read_bytes())
    return [folder / TRUST_FILE]
