"""The folder that transformers.js opens: Hugging Face's config and processor files, and the graph in onnx/.

transformers.js chooses its classes by `model_type` and runs the graph as it is, so that every ViT can be opened, also
one whose pooling or positions Hugging Face's own classes cannot hold.
"""

from pathlib import Path
from typing import Any

from vitrine.checkpoints.layouts.huggingface import for_model
from vitrine.checkpoints.record import Record
from vitrine.checkpoints.sidecars import hugging_face_settings
from vitrine.checkpoints.writing import write_json
from vitrine.data.preparing.hf_preprocess import to_hf
from vitrine.errors import ConfigError, TryOption
from vitrine.models import BiTConfig

RGB_CHANNELS = 3
ONNX_FOLDER = "onnx"


def require_openable(record: Record) -> None:
    """Refuse a model that transformers.js has no class or no input for."""
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
