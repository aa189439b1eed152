"""A few-shot classifier from the page: read its file and use it as the model's head.

The page solves the paper's closed form on features of /embed and folds the normalisation into it. The result is an
ordinary linear layer on the representation, so it replaces the head.
"""

import dataclasses
import math
from pathlib import Path

import torch

from vitrine.checkpoints import Loaded
from vitrine.errors import CheckpointError, MissingCheckpointError
from vitrine.models import Model, ViT, build
from vitrine.models.config import head_width
from vitrine.runtime.files import parse_json

FORMAT = "vitrine few-shot classifier"
# Maximum file size: enough for 4096 features and a thousand classes at sixteen digits per weight.
MOST_BYTES = 2**27


def read_classifier(path: Path) -> tuple[tuple[str, ...], torch.Tensor, torch.Tensor]:
    """Read class names, weight (K, R) and bias (K,) from a file that the page wrote."""
    try:
        is_too_large = path.stat().st_size > MOST_BYTES
        values = None if is_too_large else parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingCheckpointError(f"no such file: {path}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
    if is_too_large:
        raise CheckpointError(
            f"{path} is larger than {MOST_BYTES} bytes, so it is not a classifier from the page"
        )
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a few-shot classifier; download one from the page")
    try:
        classes = tuple(str(name) for name in values["classes"])
        weight = torch.tensor(values["weight"], dtype=torch.float64)
        bias = torch.tensor(values["bias"], dtype=torch.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    is_right = weight.ndim == 2 and len(weight) == len(classes) == len(bias) > 1 and bias.ndim == 1
    if not is_right or not math.isfinite(weight.sum().item() + bias.sum().item()):
        raise CheckpointError(
            f"{path} is damaged: {len(classes)} classes, weight {tuple(weight.shape)}, bias {tuple(bias.shape)}"
        )
    return classes, weight, bias


def with_classifier(loaded: Loaded, path: Path) -> Loaded:
    """Return the model with a few-shot classifier as its head; all other weights are shared."""
    classes, weight, bias = read_classifier(path)
    model = loaded.model
    width = representation_width(model)
    if weight.shape[1] != width:
        raise CheckpointError(
            f"{path} has {weight.shape[1]} features, the model has {width}; use the model it was downloaded for"
        )
    if isinstance(model, ViT) and model.config.has_distillation_token:
        raise CheckpointError("a model with a distillation token has two heads; use one without")
    config = dataclasses.replace(model.config, num_classes=len(classes))
    new = build(config)
    kept = {name: value for name, value in model.state_dict().items() if not name.startswith("head.")}
    new.load_state_dict({**kept, "head.weight": weight.float(), "head.bias": bias.float()}, assign=True)
    note = f"the head is the few-shot classifier {path.name} with {len(classes)} classes"
    record = dataclasses.replace(loaded.record, config=config, classes=classes, checksums={})
    return Loaded(
        model=new.eval(),
        preprocess=loaded.preprocess,
        classes=classes,
        record=record,
        notes=(*loaded.notes, note),
    )


def representation_width(model: Model) -> int:
    """Return the number of features below the head."""
    return head_width(model.config)
