"""An ONNX graph and its copies of lower precision, each opened by every runtime that is installed.

transformers.js opens a folder with Hugging Face's config and processor files and the graph in onnx/; it chooses its
classes by `model_type` and runs the graph as it is, so that it opens every ViT, also one whose pooling or positions
Hugging Face's own classes cannot hold.
"""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrine.checkpoints.layouts.huggingface import for_model
from vitrine.checkpoints.library_settings import hugging_face_settings
from vitrine.checkpoints.loading import Loaded
from vitrine.checkpoints.record import Record
from vitrine.checkpoints.writing import write_json
from vitrine.data.preparing.hf_preprocess import to_hf
from vitrine.errors import ConfigError, TryOption
from vitrine.exporting.dense_model import DenseInferenceModel, exported_form
from vitrine.exporting.exported import Export, Exported, Subject, answer_of
from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.onnx_graph import check_file, require_one_file, require_onnx, write_onnx
from vitrine.exporting.reduced_precision import require_products, write_fp16, write_int8, write_static_int8
from vitrine.exporting.runner import FILES, HUGGING_FACE_FILES, Engine, Precision, open_runner
from vitrine.models import BiTConfig
from vitrine.runtime.progress import track

RGB_CHANNELS = 3


def plan_onnx(
    loaded: Loaded, *, fp16: bool, int8: bool, calibration: Tensor | None, for_hugging_face: bool
) -> Export:
    """Check that a graph and its copies can be written; `calibration` (N, C, height, width) asks for static int8."""
    require_onnx()
    if for_hugging_face:
        require_openable(loaded.record)
    if int8 or calibration is not None:
        require_products(loaded.record.config)
    precisions: list[Precision] = ["fp32"]
    precisions += ["fp16"] if fp16 else []
    precisions += ["int8"] if int8 else []
    precisions += ["int8-static"] if calibration is not None else []
    model = exported_form(loaded.model)
    require_one_file(model)
    return lambda folder: export_onnx(
        model,
        loaded,
        folder,
        precisions=precisions,
        calibration=calibration,
        for_hugging_face=for_hugging_face,
    )


def export_onnx(
    model: InferenceModel | DenseInferenceModel,
    loaded: Loaded,
    folder: Path,
    *,
    precisions: Sequence[Precision],
    calibration: Tensor | None = None,
    for_hugging_face: bool = False,
) -> Exported:
    """Write the graph and its copies of lower precision, each checked by onnx."""
    names = HUGGING_FACE_FILES if for_hugging_face else FILES
    files = {precision: folder / names[precision] for precision in precisions}
    files["fp32"].parent.mkdir(parents=True, exist_ok=True)
    for copy in {*names.values()} - {path.relative_to(folder).as_posix() for path in files.values()}:
        (folder / copy).unlink(missing_ok=True)  # of another model, from an export that is overwritten
    settings = write_settings(loaded.record, folder) if for_hugging_face else ()
    for precision, path in track(files.items(), "Writing ONNX"):
        if precision == "fp32":
            write_onnx(model, path, record=loaded.record, for_hugging_face=for_hugging_face)
        elif precision == "int8-static":
            assert calibration is not None
            write_static_int8(files["fp32"], path, images=calibration.numpy())
        else:
            {"fp16": write_fp16, "int8": write_int8}[precision](files["fp32"], path)
        check_file(path)
    notes = []
    if "int8" in precisions:
        notes.append(
            "int8 takes the range of the activations from each batch, so an image's logits depend slightly on the "
            "other images of its batch"
        )
    return Exported(
        files=tuple(files.values()),
        settings=settings,
        subjects=tuple(subjects_of(files)),
        notes=tuple(notes),
    )


def subjects_of(files: Mapping[Precision, Path]) -> Iterator[Subject]:
    """Open each file in onnxruntime and, where it is installed, in OpenVINO."""
    engines: list[Engine] = ["onnxruntime"]
    engines += ["openvino"] if importlib.util.find_spec("openvino") else []
    for engine in engines:
        for precision, path in files.items():
            if engine == "openvino" and precision == "fp16":
                continue  # it would compute in fp32 again
            runner = open_runner(path, engine=engine)
            yield Subject(name=runner.version, precision=precision, answer=answer_of(runner), file=path)


def require_openable(record: Record) -> None:
    """Refuse a model whose class or input transformers.js does not support."""
    if isinstance(record.config, BiTConfig):
        raise ConfigError(
            "transformers.js has no class for BiT ResNets",
            option="to",
            advice=[TryOption("to", "to write a graph for onnxruntime", "onnx")],
        )
    if record.config.channels != RGB_CHANNELS:
        raise ConfigError(
            f"transformers.js reads images of 3 channels, this model has {record.config.channels}",
            option="to",
            advice=[TryOption("to", "to write a graph for onnxruntime", "onnx")],
        )
    to_hf(record.preprocess)


def write_settings(record: Record, folder: Path) -> tuple[Path, ...]:
    """Write config.json and preprocessor_config.json."""
    assert not isinstance(record.config, BiTConfig)
    layout = for_model(record.config)
    settings: dict[str, Any] = hugging_face_settings(record.config, layout, classes=record.classes)
    if record.config.num_classes:
        settings["architectures"] = [f"{settings['architectures'][0].split('For')[0]}ForImageClassification"]
    # In a browser transformers.js looks for a quantized graph unless config.json names another.
    settings["transformers.js_config"] = {"dtype": "fp32"}
    write_json(folder / "config.json", settings)
    write_json(folder / "preprocessor_config.json", to_hf(record.preprocess))
    return folder / "config.json", folder / "preprocessor_config.json"
