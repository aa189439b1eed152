"""The parts of an export: the written files, and the runtimes that compute from them.

Shapes: B images, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vitrine.exporting.proof import Answer
from vitrine.exporting.runner import OnnxRunner

Kind = Literal[
    "onnx",
    "web",
    "triton",
    "transformers.js",
    "torch-export",
    "hf",
    "timm",
    "torchvision",
    "npz",
    "executorch",
    "litert",
    "coreml",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A runtime that computes from a written file, to be compared with the model."""

    name: str
    precision: str = "fp32"
    answer: Answer | None = None
    """None if it could not be run; `reason` says why."""
    reason: str = ""
    explained: str = ""
    """Why its outputs may differ: the library has other numerics, which no file can change."""
    file: Path | None = None
    """The file that it computes from, if it is a single file."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The files of weights and graphs, and the runtimes that compute from them."""

    files: tuple[Path, ...]
    settings: tuple[Path, ...] = ()
    """Small files that go with them."""
    subjects: tuple[Subject, ...] = ()
    notes: tuple[str, ...] = ()


Export = Callable[[Path], Exported]


def answer_of(runner: OnnxRunner) -> Answer:
    """Let a runner take and return tensors: images (B, C, height, width) to logits (B, K) and embedding."""

    def answer(images: Tensor) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(values) for name, values in runner.outputs_of(np.asarray(images)).items()
        }

    return answer


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    return sum(
        each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file()
    )
