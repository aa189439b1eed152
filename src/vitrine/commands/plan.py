"""`vitrine plan`: the memory and time of a training run, before it starts."""

from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented
from vitrine.commands.arguments import require_above_zero
from vitrine.errors import ConfigError

if TYPE_CHECKING:
    from vitrine.jobs.plan import Plan


@documented
def plan(
    model: Annotated[str, Doc("Variant name, such as ViT-B/16")],
    *,
    batch_size: Annotated[int, Doc("Images per step, over all devices")] = 4096,
    devices: Annotated[int, Doc("Number of devices that train together")] = 1,
    device_memory: Annotated[float, Doc("Memory per device in GiB")] = 80.0,
    images: Annotated[float, Doc("Images in the training set")] = 1_281_167,
    epochs: Annotated[float, Doc("Passes over the training set")] = 300,
    size: Annotated[int | None, Doc("Image height and width in pixels")] = None,
    max_patches: Annotated[
        int | None,
        Doc("Keep the aspect ratio of images: at most this many patches each, all counted as full"),
    ] = None,
    num_classes: Annotated[int, Doc("Number of classes")] = 1000,
    optimizer: Annotated[
        Literal["adamw", "sgd"], Doc("Optimizer; adamw keeps two averages per weight, sgd one")
    ] = "adamw",
    precision: Annotated[
        Literal["bf16", "fp32"], Doc("Number format of the activations; weights are fp32")
    ] = "bf16",
    rate: Annotated[
        float | None,
        Doc("Training speed of one device in TFLOP/s [default: measured on this machine in a second]"),
    ] = None,
) -> "Plan":
    """Predict the memory and time of a training run, and suggest what makes it fit."""
    require_above_zero(
        batch_size=batch_size,
        devices=devices,
        device_memory=device_memory,
        images=images,
        epochs=epochs,
        rate=rate,
        max_patches=max_patches,
    )
    if size is not None and max_patches is not None:
        raise ConfigError(
            f"size {size} is one size for all, max_patches keeps the aspect ratio; give one of them",
            option="max_patches",
        )
    from vitrine.jobs.plan import plan_training

    return plan_training(
        model,
        batch_size=batch_size,
        devices=devices,
        device_memory=device_memory,
        images=images,
        epochs=epochs,
        image_size=size,
        max_patches=max_patches,
        num_classes=num_classes,
        optimizer=optimizer,
        precision=precision,
        rate=rate,
    )
