"""Learning without labels: what the loop trains, and what is said of it along the way.

Every evaluation hides the same patches, so that its losses can be compared. Where there are labels, they judge the
representation (nearest neighbours) and are never learned from.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitrine.commands.training_run import Setting
    from vitrine.data.source import Source
    from vitrine.training.loop import Evaluate, Task
    from vitrine.training.processes import Processes

# Images whose representations are looked at, of either split: enough for a point of accuracy, seconds of work.
MOST_PROBED = 2000
# At evaluation masks are drawn from this seed, whatever the run's.
EVALUATION_SEED = 0
# A sheet of pictures: images side by side, and white pixels between them.
MOST_PICTURES = 8
GAP = 2


def wrapped(setting: "Setting") -> "nn.Module":
    """Put the model into the module that the recipe's objective trains; the model stays its `vit`."""
    from vitrine.models import ViT
    from vitrine.objectives.masked_autoencoder import MaskedAutoencoder
    from vitrine.objectives.masked_patches import MaskedPatches

    recipe, model = setting.recipe, setting.model
    assert isinstance(model, ViT)
    if recipe.objective == "masked-patches":
        return MaskedPatches(model, recipe.masked_patches)
    return MaskedAutoencoder(model, recipe.autoencoder)


def make_targets(setting: "Setting") -> "Callable[[Tensor], Tensor]":
    """Return the function from pixels (B, C, height, width), 0 to 255, to what is to be predicted of each patch."""
    from vitrine.models import ViTConfig
    from vitrine.objectives.patch_targets import patch_targets

    config, recipe = setting.model.config, setting.recipe
    assert isinstance(config, ViTConfig)
    target = recipe.masked_patches.target if recipe.objective == "masked-patches" else "pixels"

    def targets_of(pixels: "Tensor") -> "Tensor":
        return patch_targets(pixels, config.token_stride, target=target)

    return targets_of


def make_unlabelled_task(setting: "Setting", processes: "Processes") -> "Task":
    """Learn to tell hidden patches: targets come from the augmented pixels, masks from the step's seed."""
    import torch
    from torch import nn

    from vitrine.commands.training_batches import make_batches, make_names
    from vitrine.data.augment import augment
    from vitrine.data.loader import Batch
    from vitrine.training.loop import Task

    recipe, preprocess = setting.recipe, setting.preprocess
    targets_of = make_targets(setting)

    def prepare(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        nobody = torch.zeros(len(batch.images), dtype=torch.int64, device=batch.images.device)
        pixels, _ = augment(
            batch.images, nobody, batch.rows, how=recipe.augment, num_classes=1, seed=recipe.training.seed
        )
        return preprocess.normalise(pixels), targets_of(pixels)

    def loss_of(
        module: nn.Module, parts: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        losses, sums = module(*parts)
        return losses, sums

    return Task(
        batches=make_batches(setting, processes),
        prepare=prepare,
        loss_of=loss_of,
        evaluate=make_unlabelled_evaluation(setting, processes) if "val" in setting.splits else None,
        # A lower loss is no better representation: the last weights are those to keep.
        metric=None,
        depict=make_pictures(setting, processes),
        names_of=make_names(setting),
    )


def make_unlabelled_evaluation(setting: "Setting", processes: "Processes") -> "Evaluate":
    """Return the function that judges on the validation split: loss, feature statistics, nearest neighbours."""
    import torch
    from torch import nn

    from vitrine.evaluation.feature_statistics import effective_rank, spread

    train_split, source = setting.splits["train"], setting.splits["val"]

    def evaluate(model: nn.Module) -> dict[str, float]:
        torch.manual_seed(EVALUATION_SEED)
        found = {"loss": mean_loss(model, setting, processes)}
        rows, labels = probed(model, source, setting, processes)
        found |= {"feature_rank": effective_rank(rows), "feature_spread": spread(rows)}
        if source.is_labelled and not source.is_multi_label:
            support = probed(model, train_split, setting, processes)
            found["knn_accuracy"] = neighbour_accuracy(support, (rows, labels), len(source.classes))
        return found

    return evaluate


def mean_loss(model: "nn.Module", setting: "Setting", processes: "Processes") -> float:
    """Return the mean loss over the validation split, every image once, shared among the processes."""
    import torch

    from vitrine.data.loader import Loader
    from vitrine.training.processes import mean_over

    source, preprocess, targets_of = setting.splits["val"], setting.preprocess, make_targets(setting)
    world_size = processes.world_size
    batch = evaluation_batch(setting, world_size)
    most_batches = math.ceil(math.ceil(len(source) / world_size) / (batch // world_size))
    sums = torch.zeros(2, device=processes.device, dtype=torch.float64)
    with Loader(
        source, preprocess, batch_size=batch, rank=processes.rank, world_size=world_size,
        num_workers=setting.workers, device=processes.device,
    ) as loader:  # fmt: skip
        own = 0
        for found in loader.evaluation_batches():
            losses, _ = model(preprocess.normalise(found.images), targets_of(found.images))
            sums += torch.stack([losses.sum().double(), sums.new_tensor(len(found))])
            own += 1
    # A sharded model gathers its weights in every pass, so all processes must make equally many.
    nothing = torch.zeros(1, preprocess.channels, *preprocess.size, device=processes.device)
    for _ in range(most_batches - own):
        model(nothing, targets_of(nothing))
    loss, count = mean_over(sums, processes).tolist()
    return float(loss / count)


def evaluation_batch(setting: "Setting", world_size: int) -> int:
    """Return a batch over all processes that is small enough to go with what training holds."""
    return min(setting.recipe.training.batch_size, 64 * world_size) // world_size * world_size or world_size


def probed(
    model: "nn.Module", source: "Source", setting: "Setting", processes: "Processes"
) -> "tuple[Tensor, Tensor]":
    """Return representations (N, D) and labels (N,) of a seeded part of a split; every process works out all."""
    import numpy as np
    import torch

    from vitrine.data.loader import Loader
    from vitrine.data.source import Subset

    if len(source) > MOST_PROBED:
        chosen = np.random.default_rng(EVALUATION_SEED).choice(len(source), MOST_PROBED, replace=False)
        source = Subset(source, np.sort(chosen))
    parts: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    with Loader(
        source, setting.preprocess, batch_size=evaluation_batch(setting, 1), num_workers=setting.workers,
        device=processes.device,
    ) as loader:  # fmt: skip
        for found in loader.evaluation_batches():
            parts.append(model(setting.preprocess.normalise(found.images)).float().cpu())
            labels.append(found.labels.cpu())
    return torch.cat(parts), torch.cat(labels)


def neighbour_accuracy(
    support: "tuple[Tensor, Tensor]", test: "tuple[Tensor, Tensor]", num_classes: int
) -> float:
    """Return the share of labelled test images that their nearest labelled support images name rightly."""
    from vitrine.data.source import NO_LABEL
    from vitrine.evaluation.probes import nearest_neighbours

    (known, names), (rows, labels) = (
        (rows[found != NO_LABEL], found[found != NO_LABEL]) for rows, found in (support, test)
    )
    guessed = nearest_neighbours(known, names, rows, num_classes=num_classes)
    return float((guessed == labels).double().mean())


def make_pictures(setting: "Setting", processes: "Processes") -> "Callable[[nn.Module, int], None] | None":
    """Return the function that writes `pictures/step-N.png`; a sharded model answers to all processes only: None."""
    from torch import nn

    if "val" not in setting.splits or (setting.shard and processes.world_size > 1):
        return None

    def depict(model: nn.Module, step: int) -> None:
        from vitrine.runtime.progress import remark

        if processes.is_first:
            try:
                write_sheet(model, setting, processes, step=step)
            except OSError as error:
                remark(f"No pictures at step {step}: {error.strerror or error}")

    return depict


def write_sheet(model: "nn.Module", setting: "Setting", processes: "Processes", *, step: int) -> None:
    """Write the first validation images as a sheet: one row each of masked input, prediction and original."""
    import numpy as np
    import torch
    from PIL import Image

    from vitrine.data.loader import Loader
    from vitrine.data.source import Subset
    from vitrine.objectives.masked_autoencoder import MaskedAutoencoder
    from vitrine.objectives.masked_patches import MaskedPatches
    from vitrine.objectives.reconstructions import reconstructions
    from vitrine.runtime.files import write_atomically

    assert isinstance(model, (MaskedPatches, MaskedAutoencoder))
    source, preprocess = setting.splits["val"], setting.preprocess
    count = min(len(source), MOST_PICTURES)
    torch.manual_seed(EVALUATION_SEED)
    with Loader(
        Subset(source, np.arange(count)), preprocess, batch_size=count, num_workers=0, device=processes.device
    ) as loader:
        pixels = next(iter(loader.evaluation_batches())).images
    found = reconstructions(model, preprocess.normalise(pixels), pixels)[:, :, :3].cpu()  # (B, 3, C, H, W)
    rows = torch.nn.functional.pad(found, (0, GAP, 0, GAP), value=255).permute(
        1, 3, 0, 4, 2
    )  # (3, H, B, W, C)
    sheet = rows.reshape(rows.shape[0] * rows.shape[1], rows.shape[2] * rows.shape[3], -1).numpy()
    sheet = sheet[:, :, 0] if sheet.shape[2] < 3 else sheet
    with write_atomically(setting.folder / "pictures" / f"step-{step}.png") as file:
        Image.fromarray(sheet).save(file, "PNG")
