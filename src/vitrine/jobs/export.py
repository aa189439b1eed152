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
from vitrine.data.sources.generated import GeneratedSource
from vitrine.data.sources.picture_paths import open_pictures
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import ConfigError, DataError, TryOption
from vitrine.evaluation.test_sets import in_model_classes
from vitrine.exporting.card import write_card
from vitrine.exporting.comparison import Timing, prove, time_in_batches
from vitrine.exporting.dense_model import require_dense_target
from vitrine.exporting.proof import Accuracy, Agreement, measure_accuracy
from vitrine.exporting.targets import Exported, Kind, plan_export
from vitrine.exporting.triton import plan_triton
from vitrine.exporting.web import PageFacts, plan_web
from vitrine.inspection.pictures import PictureBatches, spread
from vitrine.jobs.test_images import open_test_images
from vitrine.models import ViTConfig
from vitrine.models.dense.config import DenseConfig
from vitrine.runtime.files import write_atomically
from vitrine.runtime.find_run import resolve_latest
from vitrine.runtime.output_folder import new_output_folder
from vitrine.runtime.progress import notice, present
from vitrine.runtime.result import Result
from vitrine.serving.open_models import name_of
from vitrine.serving.predictor import Predictor
from vitrine.serving.served_model import ServedModel
from vitrine.spelling import with_name

FILES = ("export.json", "config.json", "onnx", "model.onnx", "model.pt2", "model.npz", "model.safetensors")
NUM_GENERATED = 8


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """The plan of an export, and the images that it is proven on."""

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
    threads: int
    notes: tuple[str, ...]
    wrote: tuple[Path, ...]

    @property
    def exit_code(self) -> int:
        """1 where an export differs and nobody could expect it."""
        return int(any(check.agrees is False and not check.explained for check in self.proof))


def export_model(
    model: str,
    *,
    to: Kind,
    out: Path | None,
    images: Sequence[str],
    count: int,
    fp16: bool,
    int8: bool,
    data: str | None,
    split: str | None,
    is_by_order: bool,
    image_size: int | None,
    is_approximate: bool,
    measures_speed: bool,
    workers: int,
    onnxruntime_web: Path | None,
    is_overwriting: bool,
) -> ExportResult:
    """Write the model, compare it with the original and time both."""
    model = resolve_latest(model)
    loaded = _loaded(as_squares(load(model, image_size=image_size), purpose="export"))
    require_dense_target(loaded.model, to=to, data=data)
    if onnxruntime_web is not None and to != "web":
        raise ConfigError(
            f"is used by web pages, not by {to}",
            option="onnxruntime_web",
            advice=[TryOption("to", "to write a web page", "web")],
        )
    if to == "web":
        write = plan_web(
            loaded, facts=lambda: page_facts(loaded, model), int8=int8, onnxruntime_web=onnxruntime_web
        )
    elif to == "triton":
        if fp16 or int8:
            raise ConfigError(
                "triton does not support copies in lower precision", option="fp16" if fp16 else "int8"
            )
        write = plan_triton(loaded)
    else:
        write = plan_export(loaded, to=to, fp16=fp16, int8=int8, approximate=is_approximate)
    pixels, kind, folders = _pixels(loaded, images, count=count, workers=workers)
    source = None if data is None else _data(loaded, model, data, split, by_order=is_by_order)
    if source is not None and source.root is not None:
        folders.append(source.root)
    folder = new_output_folder(
        out, verb="export", files=FILES, never_in=folders, is_overwriting=is_overwriting
    )
    present(ExportPlan(model=model, to=to, num_images=len(pixels), images=kind, folder=folder))
    exported = write(folder)
    proof = prove(loaded.model, exported.subjects, pixels)
    accuracy: tuple[Accuracy, ...] = ()
    if source is not None:
        others = [(s.name, s.precision, s.answer) for s in exported.subjects if s.answer is not None]
        accuracy = measure_accuracy(
            loaded.model, others, source, preprocess=loaded.preprocess, num_workers=workers
        )
    timings = time_in_batches(loaded.model, exported.subjects, pixels) if measures_speed else ()
    weights = sum(one.numel() * one.element_size() for one in loaded.model.parameters())
    result = ExportResult(
        model=model,
        to=to,
        folder=folder,
        sizes={"torch": weights, **{path.name: path.stat().st_size for path in exported.files}},
        images=kind,
        proof=proof,
        accuracy=accuracy,
        timings=timings,
        threads=torch.get_num_threads(),
        notes=(*loaded.notes, *exported.notes, *_advice(fp16=fp16, int8=int8, data=data, loaded=loaded)),
        wrote=(),
    )
    return _written(loaded, exported, result)


def _loaded(loaded: Loaded) -> Loaded:
    """Let the preprocessing give just the size that the model was built for, which the graph then has for good."""
    preprocess = loaded.preprocess.with_size(loaded.model.config.image_size)
    record = dataclasses.replace(loaded.record, preprocess=preprocess)
    return dataclasses.replace(loaded, preprocess=preprocess, record=record)


def page_facts(loaded: Loaded, model: str) -> PageFacts:
    """Describe the model to the page as a server would."""
    served = ServedModel(name_of(model), Predictor(loaded, device="cpu"), max_batch=1)
    figures = {"model": served.name, **served.figures()}
    return PageFacts(entry=served.described(), figures=figures)


def _pixels(
    loaded: Loaded, images: Sequence[str], *, count: int, workers: int
) -> tuple[Tensor, str, list[Path]]:
    """Return normalised images (N, C, height, width), what they are, and the folders that they lie in."""
    channels = loaded.preprocess.channels
    folders: list[Path] = []
    source: Source | None
    if images:
        source, folders = open_pictures(images)
        if source is None:
            raise DataError(
                f"{' '.join(images)} holds no images; without any, generated ones are used", option="images"
            )
        source = Subset(source, spread(len(source), count))
    elif channels in (1, 3):
        source = GeneratedSource(count=NUM_GENERATED, size=max(64, *loaded.preprocess.size))
    else:
        generator = torch.Generator().manual_seed(0)
        shape = (NUM_GENERATED, channels, *loaded.preprocess.size)
        return torch.randn(shape, generator=generator), "random", folders
    batches = PictureBatches(source, preprocess=loaded.preprocess, batch_size=8, num_workers=workers)
    pixels = list(batches)
    for index, why in batches.failures.items():
        notice(f"Skipped: {with_name(why, source.name(index))}")
    if not pixels:
        raise DataError(f"none of the {len(source)} images can be read; the first: {batches.failures[0]}")
    return torch.cat(pixels), "given" if images else "generated", folders


def _data(loaded: Loaded, model: str, data: str, split: str | None, *, by_order: bool) -> Source:
    _, source = open_test_images(model, data, split)
    source = in_model_classes(
        source, loaded.classes, num_outputs=loaded.model.config.num_classes, by_order=by_order
    )
    if source.is_multi_label:
        raise ConfigError(f"needs one label per image; {data} has several", option="data")
    return source


def _advice(*, fp16: bool, int8: bool, data: str | None, loaded: Loaded) -> list[str]:
    notes = []
    if (fp16 or int8) and data is None and not isinstance(loaded.model.config, DenseConfig):
        notes.append("the accuracy of fp16 and int8 was not measured; it needs labelled data")
    config = loaded.model.config
    if int8 and isinstance(config, ViTConfig) and config.stem is not None:
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
        notes=result.notes,
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
    """Copy what the model knows about its limits: with it and the embedding any program finds "none of these"."""
    if loaded.folder is None or not (loaded.folder / TRUST_FILE).is_file():
        return []
    with write_atomically(folder / TRUST_FILE) as file:
        file.write((loaded.folder / TRUST_FILE).read_bytes())
    return [folder / TRUST_FILE]
