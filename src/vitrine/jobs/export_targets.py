"""The options of an export, and the plan for each target."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vitrine.checkpoints import Loaded
from vitrine.errors import ConfigError, TryOption
from vitrine.exporting.edge import plan_edge
from vitrine.exporting.exported import KINDS, Export, Kind
from vitrine.exporting.onnx_files import plan_onnx
from vitrine.exporting.targets import plan_export
from vitrine.exporting.triton import plan_triton
from vitrine.exporting.web import PageFacts, plan_web


@dataclass(frozen=True, kw_only=True)
class ExportWish:
    """The target and its options."""

    to: Kind
    fp16: bool = False
    int8: bool = False
    calibrate: tuple[str, ...] = ()
    """Pictures to fix the ranges of one more eight-bit copy on."""
    allows_loss: bool = False
    """Whether to keep an eight-bit copy that is slower or loses more than a point."""
    is_approximate: bool = False
    onnxruntime_web: Path | None = None


def plan_wish(
    loaded: Loaded,
    wish: ExportWish,
    *,
    facts: Callable[[], PageFacts],
    calibration: Callable[[], Tensor],
) -> Export:
    """Check that the model can be written so; return the function that writes it into a folder."""
    require_known_options(wish)
    if wish.to == "web":
        return plan_web(loaded, facts=facts, int8=wish.int8, onnxruntime_web=wish.onnxruntime_web)
    if wish.to == "triton":
        return plan_triton(loaded)
    if wish.to in ("onnx", "transformers.js"):
        return plan_onnx(
            loaded,
            fp16=wish.fp16,
            int8=wish.int8,
            calibration=calibration() if wish.calibrate else None,
            for_hugging_face=wish.to == "transformers.js",
        )
    if wish.to in ("executorch", "litert", "coreml"):
        return plan_edge(loaded, to=wish.to)
    return plan_export(loaded, to=wish.to, approximate=wish.is_approximate)


def require_known_options(wish: ExportWish) -> None:
    """Refuse an option that the target does not have."""
    if wish.to not in KINDS:
        raise ConfigError(f"must be one of {', '.join(KINDS)}, got {wish.to!r}", option="to")
    if wish.onnxruntime_web is not None and wish.to != "web":
        raise ConfigError(
            f"is used by web pages, not by {wish.to}",
            option="onnxruntime_web",
            advice=[TryOption("to", "to write a web page", "web")],
        )
    copies = {
        "fp16": (wish.fp16, ("onnx", "transformers.js")),
        "int8": (wish.int8, ("onnx", "transformers.js", "web")),
        "calibrate": (bool(wish.calibrate), ("onnx",)),
    }
    for option, (is_asked, targets) in copies.items():
        if is_asked and wish.to not in targets:
            raise ConfigError(
                f"{wish.to} does not support copies in lower precision",
                option=option,
                advice=[TryOption("to", "to write an ONNX graph", "onnx")],
            )
