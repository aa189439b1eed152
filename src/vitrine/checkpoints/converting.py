"""Convert any layout to any other, tensor by tensor, with a report that proves the result."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrine.checkpoints.layouts import Generation, Target
from vitrine.checkpoints.libraries import LIBRARIES, NoAnswerError, outputs_of
from vitrine.checkpoints.loading import load
from vitrine.checkpoints.locating import in_folder
from vitrine.checkpoints.opening import Opened, adapt, open_weights
from vitrine.checkpoints.reading import open_tensors
from vitrine.checkpoints.reading.safetensors_file import require_sha256
from vitrine.checkpoints.report import Parity, TensorLine, describe_tensors, largest_difference
from vitrine.checkpoints.saving import Prepared, prepare, write
from vitrine.checkpoints.tensors import require_readable
from vitrine.checkpoints.weights import MappedWeights, Weights, as_written, fill_model
from vitrine.errors import CheckpointError
from vitrine.models import BiTConfig, ModelConfig, ViTConfig
from vitrine.models.families import untold_options
from vitrine.models.sizes import as_size
from vitrine.models.stem_configs import ResNetStemConfig
from vitrine.runtime.result import Result

NUM_RANDOM_IMAGES = 2
MAX_GIVEN_IMAGES = 8
# Constants of the libraries' own models that no setting in a file can change.
LIBRARY_EPS = {
    "timm": 1e-6,
    "naflex": 1e-6,
    "npz": 1e-6,
    "dinov2": 1e-6,
    "dinov3": 1e-5,
    "openclip": 1e-5,
    "deit3": 1e-6,
}
ONLY_ERF = ("torchvision", "dinov2", "dinov3", "deit3")
# Epsilons of group norm, then those that standardisation adds to the deviation and to the variance.
STEM_EPS = {"npz": (1e-6, 1e-5, 0.0), "timm": (1e-5, 0.0, 1e-8)}
BIT_EPS = {"npz": (1e-5, 0.0, 1e-10), "timm": (1e-5, 0.0, 1e-8)}


@dataclass(frozen=True, kw_only=True, repr=False)
class Conversion(Result):
    """The converted tensors, one by one, and how well the models agree."""

    source: str
    destination: Path
    source_layout: str
    target_layout: str
    tensors: tuple[TensorLine, ...]
    left_out: dict[str, str]
    """Tensors of the source that the model does not use, and why."""
    notes: tuple[str, ...]
    num_identical: int
    """Tensors that are equal bit for bit when the written file is read back."""
    parity: tuple[Parity, ...]
    has_head: bool = True

    @property
    def exit_code(self) -> int:
        """1 if a check failed that the caller had not allowed to fail."""
        is_whole = self.num_identical == len(self.tensors)
        agrees = all(check.agrees is not False or check.explained for check in self.parity)
        return 0 if is_whole and agrees else 1


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    to: Target,
    generation: Generation = "A",
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | None = None,
    num_classes: int | None = None,
    channels: int | None = None,
    num_heads: int | None = None,
    options: Mapping[str, Any] | None = None,
    images: tuple[Path, ...] = (),
    approximate: bool = False,
    check_logits: bool = True,
    overwrite: bool = False,
) -> Conversion:
    """Convert weights, read the result back and compare what both compute."""
    size = None if image_size is None else as_size(image_size)
    opened = open_weights(
        source, image_size=size if patch_size is None else None, num_heads=num_heads, options=options
    )
    if "sha256" in opened.checksums and opened.file:
        require_sha256(opened.file.path, opened.checksums["sha256"])
    mapped = opened.weights
    opened = adapt(
        opened, num_classes=num_classes, image_size=size, channels=channels, features_only=False, patch=patch_size
    )  # fmt: skip
    prepared = prepare(
        opened.weights, opened.record, target=to, generation=generation, approximate=approximate
    )
    inputs = given_images(opened, images) if images else None
    notes = (*opened.notes, *prepared.notes, *zero_notes(opened.weights))
    path = write(prepared, Path(destination), overwrite=overwrite)
    return Conversion(
        source=str(source),
        destination=path,
        source_layout=opened.record.layout,
        target_layout=prepared.layout.name,
        tensors=describe_tensors(prepared, mapped),
        left_out=dict(mapped.left_out) if isinstance(mapped, MappedWeights) else {},
        notes=notes,
        num_identical=count_identical(prepared, path),
        parity=compare(opened, prepared, path, inputs=inputs) if check_logits else (),
        has_head=bool(opened.record.config.num_classes),
    )


def count_identical(prepared: Prepared, path: Path) -> int:
    """Read the written file back and count its tensors that equal the source's bit for bit."""
    file = open_tensors(in_folder(path).weights if path.is_dir() else path)
    same = 0
    for rule, tensor in as_written(prepared.rules, prepared.weights):
        same += torch.equal(file.read(rule.theirs), tensor)
    return same


def compare(opened: Opened, prepared: Prepared, path: Path, *, inputs: Tensor | None) -> tuple[Parity, ...]:
    """Compare logits on random and given images: ours from the source, ours read back, the library's.

    One model is in memory at a time, so the peak is the size of one model.
    """
    config = opened.record.config
    generator = torch.Generator().manual_seed(0)
    shape = (NUM_RANDOM_IMAGES, config.channels, *config.image_size)
    batches = {"random images": torch.randn(shape, generator=generator)}
    if inputs is not None:
        batches["given images"] = inputs
    expected = {name: run(opened.weights, batch) for name, batch in batches.items()}
    gc.collect()
    reloaded = load(path, options=untold_options(config), image_size=config.image_size)
    checks, explained = [], other_numerics(prepared.target, config)
    for name, batch in batches.items():
        with torch.inference_mode():
            computed = reloaded.model(batch)
        # A folder records the source's numerics; a bare .npz cannot.
        why = explained if prepared.target == "npz" else ""
        checks.append(largest_difference("Vitrine, read back", name, expected[name], computed, explained=why))
    del reloaded
    gc.collect()
    library = LIBRARIES.get("hf" if prepared.target == "vitrine" else prepared.target)
    if library is None or (prepared.target == "vitrine" and not prepared.layout.name.startswith("Hugging")):
        return tuple(checks)
    target = "hf" if prepared.target == "vitrine" else prepared.target
    for name, batch in batches.items():
        try:
            who, computed = outputs_of(target, path, config=prepared.record.config, images=batch)
            checks.append(largest_difference(who, name, expected[name], computed, explained=explained))
        except NoAnswerError as error:
            checks.append(Parity(against=library, images=name, largest=None, scale=None, reason=str(error)))
            break
    return tuple(checks)


def run(weights: Weights, images: Tensor) -> Tensor:
    """Compute the logits of the source's model."""
    with torch.inference_mode():
        return fill_model(weights)(images)


def given_images(opened: Opened, paths: tuple[Path, ...]) -> Tensor:
    """Apply the source's preprocessing to the user's images."""
    if len(paths) > MAX_GIVEN_IMAGES:
        raise CheckpointError(f"at most {MAX_GIVEN_IMAGES} images are compared, got {len(paths)}")
    preprocess = opened.record.preprocess.with_size(opened.record.config.image_size)
    for path in paths:
        require_readable(path)
    return torch.stack([preprocess(path.read_bytes(), name=str(path)) for path in paths])


def other_numerics(to: Target, config: ModelConfig) -> str:
    """Return where the target's own code computes differently from the source, which no file can change.

    Layer norm and standardisation epsilons are constants of the libraries; their effect is small, so it is measured
    and reported. Another form of GELU is refused earlier, unless the caller allows it.
    """
    differs = []
    if isinstance(config, ViTConfig):
        eps = library_eps(to, config)
        if eps is not None and config.norm_eps != eps:
            differs.append(f"a layer norm epsilon of {eps:g} instead of {config.norm_eps:g}")
        is_other = (config.gelu == "tanh" and to in ONLY_ERF) or (config.gelu == "erf" and to == "npz")
        if is_other and config.activation == "gelu":
            differs.append(f"a GELU of another form than {config.gelu}")
    is_bit = isinstance(config, BiTConfig)
    stem = config.stem if isinstance(config, ViTConfig) else None
    convolutions = config if isinstance(config, BiTConfig) else stem
    if to in STEM_EPS and isinstance(convolutions, (BiTConfig, ResNetStemConfig)):
        ours = (
            convolutions.norm_eps,
            convolutions.standardisation_std_eps,
            convolutions.standardisation_variance_eps,
        )
        if ours != (BIT_EPS if is_bit else STEM_EPS)[to]:
            differs.append("other epsilons in group norm and weight standardisation")
    return f"{to} computes with {' and '.join(differs)}" if differs else ""


def library_eps(to: Target, config: ViTConfig) -> float | None:
    """Return the epsilon of the target's own models of this kind; timm's DINOv3 and CLIP have another."""
    is_other = to == "timm" and (config.rotary == "dinov3" or config.embedding_norm)
    return 1e-5 if is_other else LIBRARY_EPS.get(to)


def zero_notes(weights: Weights) -> tuple[str, ...]:
    """Return a note if the head is all zeros."""
    if "head.weight" not in weights.index or weights.read("head.weight").count_nonzero():
        return ()
    return ("the head is all zeros, as in the official ImageNet-21k files: its logits are meaningless",)
