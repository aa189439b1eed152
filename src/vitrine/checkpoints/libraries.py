"""The target's own library computes from the written file, if it is installed: the proof of a conversion."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from vitrine.checkpoints.layouts.eva import timm_outputs
from vitrine.checkpoints.layouts.timm_naflex import naflex_arguments
from vitrine.checkpoints.library_settings import timm_model
from vitrine.checkpoints.reading.safetensors_file import SafetensorsFile
from vitrine.checkpoints.sidecars import read_json
from vitrine.models import BiTConfig, ModelConfig, ViTConfig

LIBRARIES = {"hf": "transformers", "timm": "timm", "naflex": "timm", "torchvision": "torchvision"}


class NoAnswerError(Exception):
    """The library cannot compute: it is not installed, or has no such model."""


def outputs_of(target: str, path: Path, *, config: ModelConfig, images: Tensor) -> tuple[str, Tensor]:
    """Return the library's name and what it computes for `images` from the written file."""
    name, run = open_in_library(target, path, config=config)
    return name, run(images)


def open_in_library(
    target: str, path: Path, *, config: ModelConfig
) -> tuple[str, Callable[[Tensor], Tensor]]:
    """Open a written file in its own library: the library's name and a function of images, gradients off."""
    library = import_library(LIBRARIES[target])
    name = f"{LIBRARIES[target]} {library.__version__}"
    build = {
        "hf": hugging_face_model,
        "timm": timm_library_model,
        "naflex": naflex_library_model,
        "torchvision": torchvision_model,
    }[target]
    with answering(name):
        model = build(library, path, config)

    def run(images: Tensor) -> Tensor:
        with answering(name), torch.inference_mode():
            return model(images)

    return name, run


@contextmanager
def answering(name: str) -> Iterator[None]:
    """Turn any exception of another library into the answer that it cannot read our file."""
    try:
        yield
    except NoAnswerError:
        raise
    except ImportError as error:  # transformers imports what it needs only now
        raise NoAnswerError(f"{name} cannot be used here: {first_line(error)}") from None
    except Exception as error:
        raise NoAnswerError(
            f"{name} does not read it: {type(error).__name__}: {first_line(error)}"
        ) from error


def import_library(name: str) -> ModuleType:
    """Import a library that may not be installed."""
    try:
        return import_installed(name)
    except ImportError:
        raise NoAnswerError(f"{name} is not installed") from None
    except RuntimeError as error:
        raise NoAnswerError(f"{name} cannot be imported here: {first_line(error)}") from None


def hugging_face_model(library: Any, path: Path, config: ModelConfig) -> Any:
    """Load a folder with transformers' public API."""
    library.utils.logging.disable_progress_bar()  # its progress bar would overwrite ours
    architecture = read_json(path / "config.json")["architectures"][0]
    model = getattr(library, architecture).from_pretrained(path, local_files_only=True).eval().float()

    def run(images: Tensor) -> Tensor:
        if architecture == "Siglip2VisionModel":
            return model(**as_flat_patches(images, patch=model.config.patch_size)).pooler_output
        output = model(images)
        if config.num_classes:
            return output.logits
        if architecture == "CLIPVisionModelWithProjection":
            return output.image_embeds
        if architecture in ("BeitModel", "CLIPVisionModel", "SiglipVisionModel"):
            return output.pooler_output
        if isinstance(config, ViTConfig) and config.representation_width:
            return output.pooler_output
        return output.last_hidden_state[:, 0]

    return run


def as_flat_patches(images: Tensor, *, patch: int) -> dict[str, Tensor]:
    """Cut images of one shape as SigLIP 2's processor does: flat patches, channels last, all of them there."""
    B, C, height, width = images.shape
    grid = height // patch, width // patch
    pieces = images.view(B, C, grid[0], patch, grid[1], patch).permute(0, 2, 4, 3, 5, 1)
    return {
        "pixel_values": pieces.reshape(B, grid[0] * grid[1], -1),
        "pixel_attention_mask": torch.ones(B, grid[0] * grid[1], dtype=torch.int32),
        "spatial_shapes": torch.tensor([grid] * B),
    }


def timm_library_model(library: Any, path: Path, config: ModelConfig) -> Any:
    """Build timm's model of the same shape and give it the file, strictly."""
    return filled_by_timm(library, path, config, timm_model(config))


def naflex_library_model(library: Any, path: Path, config: ModelConfig) -> Any:
    """Build timm's NaFlex model of the same shape and give it the file, strictly."""
    assert isinstance(config, ViTConfig)
    return filled_by_timm(library, path, config, naflex_arguments(config))


def filled_by_timm(
    library: Any, path: Path, config: ModelConfig, built: tuple[str | None, dict[str, Any]]
) -> Any:
    """Create a model of timm by name and arguments, and load a file's tensors into it."""
    name, arguments = built
    if name is None:
        raise NoAnswerError(
            "timm has no name for a model of this shape; its classes can still hold the weights"
        )
    model = library.create_model(name, pretrained=False, num_classes=timm_outputs(config), **arguments)
    model.load_state_dict(state_dict_of(path), strict=True)
    return model.eval()


def torchvision_model(library: Any, path: Path, config: ModelConfig) -> Any:
    """Build torchvision's model of the same shape and give it the file, strictly."""
    assert isinstance(config, ViTConfig) and not isinstance(config, BiTConfig)
    transformer = importlib.import_module("torchvision.models.vision_transformer").VisionTransformer
    model = transformer(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp_width,
        num_classes=config.num_classes or 1,
        representation_size=config.representation_width,
        norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
    )
    if config.channels != 3:  # torchvision's constructor supports three channels only
        model.conv_proj = nn.Conv2d(config.channels, config.width, config.patch_size, config.patch_size)
    if config.num_classes is None:
        model.heads.head = nn.Identity()
    model.load_state_dict(state_dict_of(path), strict=True)
    return model.eval()


def state_dict_of(path: Path) -> dict[str, Tensor]:
    """Read a written file as plain tensors in fp32."""
    file = SafetensorsFile(path if path.suffix == ".safetensors" else path / "model.safetensors")
    return {name: file.read(name).float() for name in file.index}


def first_line(error: BaseException) -> str:
    """Return the start of another library's message."""
    return str(error).strip().split("\n")[0]


def import_installed(name: str) -> ModuleType:
    """Import a library; ImportError if it is not installed, RuntimeError if it cannot be used here."""
    make_torchvision_importable()
    return importlib.import_module(name)


@cache
def make_torchvision_importable() -> torch.library.Library | None:
    """Let torchvision's Python code be imported with a torch build that its compiled code does not match.

    This is common (a CUDA wheel with a CPU build of torch) and breaks timm and transformers too, although their ViTs
    need none of the compiled operators. It is enough to define the two names that torchvision looks up.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            return None
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
        return library  # kept by the cache: operators go when their library does
    return None
