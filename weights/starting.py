"""Students and where they start: fresh, from a model of the box, or from the teacher's own weights.

The teacher and a ViT-S/16 differ in three things, each of which can be undone: patches of 14 pixels are resized to 16
with the pseudo-inverse (FlexiViT, arXiv:2212.08013, section 3), positions from 37 x 37 to 14 x 14, and LayerScale's
gains are multiplied into the matrices before them, which changes nothing.

    python weights/starting.py DINOV2 OUT         # the teacher itself in half precision, to travel
    python weights/starting.py DINOV2 OUT --student   # the ViT-S/16 that it becomes, before any training
"""

import argparse

import torch
from torch import nn

import vitrine
from vitrine.models import ViT, create_model

SIZE, PATCH = 224, 16
NUM_CLASSES = 1000
VARIANTS = {"ti": "ViT-Ti/16", "s": "ViT-S/16"}
TEACHER = "teacher"


def student_vit(name: str, start: str | None, *, teacher: str, drop: float) -> ViT:
    """Return a student with a fresh head of 1,000 classes; `start` is weights of the same shape, or `teacher`."""
    model = create_model(
        VARIANTS[name], num_classes=NUM_CLASSES, image_size=SIZE, stochastic_depth=drop, gelu="erf"
    )
    assert isinstance(model, ViT) and model.head is not None
    if start is not None:
        given = (
            without_layer_scale(at_student_patches(teacher))
            if start == TEACHER
            else vitrine.load(start).model
        )
        weights = given.state_dict()
        has_head = given.config.num_classes == NUM_CLASSES
        kept = {key: value for key, value in weights.items() if has_head or not key.startswith("head.")}
        missing, extra = model.load_state_dict(kept, strict=False)
        if extra or any(not key.startswith("head.") for key in missing):
            raise SystemExit(f"{start} is not a {VARIANTS[name]}: {', '.join([*missing, *extra][:4])}")
        if has_head:
            return model
    nn.init.trunc_normal_(model.head.weight, std=0.01)
    return model


def student_size() -> dict[str, int | None]:
    """Return the input of a student in the form that `vitrine.load` takes."""
    return {"size": SIZE, "patch": PATCH, "max_patches": None}


def at_student_patches(teacher: str) -> ViT:
    """Load the teacher with the student's patches and positions."""
    model = vitrine.load(teacher, image_size=student_size()).model
    assert isinstance(model, ViT)
    return model


@torch.no_grad()
def without_layer_scale(model: ViT) -> ViT:
    """Multiply LayerScale's gains into the matrices before them: the model computes the same without them."""
    weights = dict(model.state_dict())
    for number in range(model.config.depth):
        for gain, matrix in (("scale_1", "attention.to_out"), ("scale_2", "mlp.contract")):
            factor = weights.pop(f"blocks.{number}.{gain}.gain", None)
            if factor is None:
                return model
            name = f"blocks.{number}.{matrix}"
            weights[f"{name}.weight"] = weights[f"{name}.weight"] * factor[:, None]
            weights[f"{name}.bias"] = weights[f"{name}.bias"] * factor
    config = model.config
    plain = create_model(
        VARIANTS["s"], num_classes=None, image_size=config.image_size, width=config.width, depth=config.depth,
        num_heads=config.num_heads, mlp_width=config.mlp_width, patch_size=config.patch_size, gelu=config.gelu,
    )  # fmt: skip
    plain.load_state_dict(weights)
    assert isinstance(plain, ViT)
    return plain.eval()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("teacher")
    parser.add_argument("out")
    parser.add_argument("--student", action="store_true")
    options = parser.parse_args()
    loaded = vitrine.load(options.teacher, image_size=student_size() if options.student else None)
    model = without_layer_scale(loaded.model) if options.student else loaded.model
    vitrine.save(model.half(), options.out, preprocess=loaded.preprocess)


if __name__ == "__main__":
    main()
