"""`vitrine export`: a model in another format, with proof that it computes the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import BOX, as_model, as_path, as_texts
from vitrine.commands.model_or_box import ModelOrBox
from vitrine.runtime.find_run import resolve_latest
from vitrine.spelling import counted, with_name

if TYPE_CHECKING:
    from torch import Tensor

    from vitrine.checkpoints import Loaded
    from vitrine.data.sources.source import Source
    from vitrine.exporting.comparison import Timing
    from vitrine.exporting.proof import Accuracy, Agreement
    from vitrine.exporting.targets import Exported

FILES = ("export.json", "config.json", "model.onnx", "model.pt2", "model.npz", "model.safetensors")
NUM_GENERATED = 8


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What was written, how well it agrees, how large and fast it is."""

    model: str
    to: str
    folder: Path
    sizes: dict[str, int]
    """Bytes of each file of weights; `torch` is the model as it is in memory."""
    images: str
    """Given or generated: what the proof was made on."""
    proof: tuple["Agreement", ...]
    accuracy: tuple["Accuracy", ...]
    timings: tuple["Timing", ...]
    threads: int
    notes: tuple[str, ...]
    wrote: tuple[Path, ...]

    @property
    def exit_code(self) -> int:
        """1 where an export differs and nobody could expect it."""
        return int(any(check.agrees is False and not check.explained for check in self.proof))

    def __str__(self) -> str:
        from vitrine.exporting.card import accuracy_lines, proof_lines

        lines = [f"{self.model} -> {self.folder} ({self.to})", f"Proof on {self.images} images:"]
        lines += [f"  {line}" for line in proof_lines(self.proof)]
        lines += [f"  {line}" for line in accuracy_lines(self.accuracy)]
        lines.append(
            "Size: " + ", ".join(f"{name} {size / 2**20:,.1f} MiB" for name, size in self.sizes.items())
        )
        if self.timings:
            lines.append(f"Speed here, {counted(self.threads, 'thread')}, milliseconds a batch:")
            for size in sorted({found.batch_size for found in self.timings}):
                at = [found for found in self.timings if found.batch_size == size]
                told = ", ".join(
                    f"{found.engine} {found.precision} {found.milliseconds:,.1f}" for found in at
                )
                lines.append(f"  {size} image{'s' * (size != 1)}: {told}")
        lines += [f"Note: {note}" for note in self.notes]
        lines += [f"Wrote {path}" for path in self.wrote]
        lines.append(f"Next: see {self.folder / 'README.md'} for how to run it")
        return "\n".join(lines)


@documented
def export(
    model: ModelOrBox = None,
    *,
    to: Annotated[
        Literal["onnx", "torch-export", "hf", "timm", "torchvision", "npz"], Doc("Format to write")
    ] = "onnx",
    out: Annotated[
        Path | str | None, Doc("Folder for the export [default: a new dated folder under ./runs]")
    ] = None,
    images: Annotated[
        str | Path | Sequence[str | Path] | None,
        Doc("Files, folders or patterns of images to compare the outputs on [default: generated images]"),
    ] = None,
    count: Annotated[int, Doc("Number of the given images to compare, spread evenly")] = 32,
    fp16: Annotated[bool, Doc("Also write a copy in half precision (onnx)")] = False,
    int8: Annotated[bool, Doc("Also write a copy with 8-bit matrix products (onnx)")] = False,
    data: Annotated[
        str | Path | None, Doc("Labelled data set to measure top-1 accuracy of each precision on")
    ] = None,
    split: Annotated[
        str | None,
        Doc("Split of the data [default: test, else val, else the images that the run held out, else all]"),
    ] = None,
    by_order: Annotated[bool, Doc("Match the classes of the data by order instead of by name")] = False,
    size: options.ModelSize = None,
    approximate: Annotated[
        bool, Doc("Export even if the target uses another GELU than the weights were trained with")
    ] = False,
    speed: Annotated[bool, Doc("Compare the speed of the export with torch")] = True,
    workers: options.Readers = 2,
    overwrite: Annotated[bool, Doc("Replace the export in the output folder")] = False,
) -> ExportResult:
    """Export a model for onnxruntime, torch, transformers, timm, torchvision or JAX, and prove that outputs agree."""
    model, images, out = as_model(model or BOX), as_texts(images), as_path(out)
    data = None if data is None else str(data)
    import torch

    from vitrine.checkpoints import load
    from vitrine.errors import ConfigError
    from vitrine.exporting.comparison import prove, time_in_batches
    from vitrine.exporting.proof import measure_accuracy
    from vitrine.exporting.targets import plan_export
    from vitrine.runtime.output_folder import new_output_folder
    from vitrine.runtime.progress import notice

    model = resolve_latest(model or BOX)
    if count < 1:
        raise ConfigError(f"--count must be at least 1, got {count}")
    loaded = _loaded(load(model, image_size=size))
    write = plan_export(loaded, to=to, fp16=fp16, int8=int8, approximate=approximate)
    pixels, kind, folders = _pixels(loaded, list(images), count=count, workers=workers)
    source = None if data is None else _data(loaded, model, data, split, by_order=by_order)
    if source is not None and source.root is not None:
        folders.append(source.root)
    out = None if out is None else Path(out)
    folder = new_output_folder(out, verb="export", files=FILES, never_in=folders, is_overwriting=overwrite)
    notice(f"Plan: {model} to {to}, proof on {counted(len(pixels), f'{kind} image')}; to {folder}")
    exported = write(folder)
    proof = prove(loaded.model, exported.subjects, pixels)
    accuracy: tuple[Accuracy, ...] = ()
    if source is not None:
        others = [(s.name, s.precision, s.answer) for s in exported.subjects if s.answer is not None]
        accuracy = measure_accuracy(
            loaded.model, others, source, preprocess=loaded.preprocess, num_workers=workers
        )
    timings = time_in_batches(loaded.model, exported.subjects, pixels) if speed else ()
    weights = sum(found.numel() * found.element_size() for found in loaded.model.parameters())
    return _written(
        loaded,
        exported,
        ExportResult(
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
        ),
    )


def _loaded(loaded: "Loaded") -> "Loaded":
    """Let the preprocessing give just the size that the model was built for, which the graph then has for good."""
    import dataclasses

    preprocess = loaded.preprocess.with_size(loaded.model.config.image_size)
    record = dataclasses.replace(loaded.record, preprocess=preprocess)
    return dataclasses.replace(loaded, preprocess=preprocess, record=record)


def _pixels(
    loaded: "Loaded", images: list[str] | None, *, count: int, workers: int
) -> "tuple[Tensor, str, list[Path]]":
    """Return normalised images (N, C, height, width), what they are, and the folders that they lie in."""
    import torch

    from vitrine.data.sources.generated import GeneratedSource
    from vitrine.data.sources.picture_paths import open_pictures
    from vitrine.data.sources.source import Subset
    from vitrine.errors import DataError
    from vitrine.inspection.pictures import PictureBatches, spread
    from vitrine.runtime.progress import notice

    channels = loaded.preprocess.channels
    folders: list[Path] = []
    source: Source | None
    if images:
        source, folders = open_pictures(images)
        if source is None:
            raise DataError(f"{' '.join(images)} holds no images; leave --images out for generated ones")
        source = Subset(source, spread(len(source), count))
    elif channels in (1, 3):
        source = GeneratedSource(count=NUM_GENERATED, size=max(64, *loaded.preprocess.size))
    else:
        generator = torch.Generator().manual_seed(0)
        shape = (NUM_GENERATED, channels, *loaded.preprocess.size)
        return torch.randn(shape, generator=generator), "random", folders
    batches = PictureBatches(source, preprocess=loaded.preprocess, batch_size=8, num_workers=workers)
    found = list(batches)
    for index, why in batches.failures.items():
        notice(f"Left out: {with_name(why, source.name(index))}")
    if not found:
        raise DataError(f"none of the {len(source)} images can be read; the first: {batches.failures[0]}")
    return torch.cat(found), "given" if images else "generated", folders


def _data(loaded: "Loaded", model: str, data: str, split: str | None, *, by_order: bool) -> "Source":
    from vitrine.errors import ConfigError
    from vitrine.evaluation.test_sets import in_model_classes
    from vitrine.jobs.test_images import open_test_images

    _, source = open_test_images(model, data, split)
    source = in_model_classes(
        source, loaded.classes, num_outputs=loaded.model.config.num_classes, by_order=by_order
    )
    if source.is_multi_label:
        raise ConfigError(f"--data needs one label an image; {data} has several")
    return source


def _advice(*, fp16: bool, int8: bool, data: str | None, loaded: "Loaded") -> list[str]:
    from vitrine.models import ViTConfig

    notes = []
    if (fp16 or int8) and data is None:
        notes.append("what fp16 and int8 cost in accuracy was not measured; give a labelled set with --data")
    config = loaded.model.config
    if int8 and isinstance(config, ViTConfig) and config.stem is not None:
        notes.append("int8: the convolutions of the hybrid stay in fp32, its transformer is in eight bits")
    return notes


def _written(loaded: "Loaded", exported: "Exported", result: ExportResult) -> ExportResult:
    """Write names, preprocessing, card and the proof beside the files."""
    import dataclasses

    from vitrine.checkpoints.writing import write_json, write_text
    from vitrine.exporting.card import write_card

    folder, record = result.folder, loaded.record
    write_json(folder / "preprocess.json", record.preprocess.to_json())
    small = [folder / "preprocess.json"]
    if record.classes:
        write_json(folder / "classes.json", list(record.classes))
        small.append(folder / "classes.json")
    card = write_card(
        record, to=result.to, proof=result.proof, accuracy=result.accuracy, notes=result.notes  # type: ignore[arg-type]
    )  # fmt: skip
    write_text(folder / "README.md", card)
    proof = dataclasses.asdict(result)
    del proof["wrote"], proof["folder"]
    write_json(folder / "export.json", proof)
    wrote = (*exported.files, *small, folder / "README.md", folder / "export.json")
    return dataclasses.replace(result, wrote=wrote)
