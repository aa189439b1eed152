"""Sheets of pictures along the way: what the model was given, what it made of it, where it looks."""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from vitrine.errors import CheckpointError
from vitrine.runtime.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitrine.data.loading.order import Rows
    from vitrine.models import ViT
    from vitrine.runs.training_run import Setting
    from vitrine.runs.unlabelled_task import PartsOf
    from vitrine.runtime.processes import Processes

# Images side by side, and white pixels between them.
MOST_PICTURES = 8
GAP = 2
# What the model does not look at stays this bright, so that one can tell what it is.
LEAST_LIGHT = 0.15


def make_pictures(
    setting: "Setting", processes: "Processes", parts_of: "PartsOf"
) -> "Callable[[nn.Module, int], None] | None":
    """Return the function that writes `pictures/step-N.png`; a sharded model answers to all processes only: None."""
    from torch import nn

    if "val" not in setting.splits or (setting.shard and processes.world_size > 1):
        return None

    def depict(model: nn.Module, step: int) -> None:
        from vitrine.runtime.progress import notice

        if processes.is_first:
            try:
                write_sheet(model, setting, processes, parts_of, step=step)
            except CheckpointError as error:
                notice(f"No pictures at step {step}: {error}")

    return depict


def write_sheet(
    model: "nn.Module", setting: "Setting", processes: "Processes", parts_of: "PartsOf", *, step: int
) -> None:
    """Write the first validation images as a sheet: a row each for what the objective has to show, then attention."""
    import numpy as np
    import torch
    from PIL import Image

    from vitrine.data.loading.loader import Loader
    from vitrine.data.sources.source import Subset
    from vitrine.runs.unlabelled_evaluation import EVALUATION_SEED

    source, preprocess = setting.splits["val"], setting.preprocess
    count = min(len(source), MOST_PICTURES)
    torch.manual_seed(EVALUATION_SEED)
    with Loader(
        Subset(source, np.arange(count)), preprocess, batch_size=count, num_workers=0, device=processes.device
    ) as loader:
        batch = next(iter(loader.evaluation_batches()))
    found = shown_rows(model, setting, batch.images, batch.rows, parts_of)[
        :, :, :3
    ].cpu()  # (B, rows, C, H, W)
    rows = torch.nn.functional.pad(found, (0, GAP, 0, GAP), value=255).permute(
        1, 3, 0, 4, 2
    )  # (rows, H, B, W, C)
    sheet = rows.reshape(rows.shape[0] * rows.shape[1], rows.shape[2] * rows.shape[3], -1).numpy()
    sheet = sheet[:, :, 0] if sheet.shape[2] < 3 else sheet
    png = io.BytesIO()
    Image.fromarray(sheet).save(png, "PNG")
    RunFolder(setting.folder).write_picture(step, png.getvalue())


def shown_rows(
    model: "nn.Module", setting: "Setting", pixels: "Tensor", rows: "Rows", parts_of: "PartsOf"
) -> "Tensor":
    """Return what there is to see of each image (B, rows, C, height, width) uint8, attention included."""
    import torch

    from vitrine.models import ViT
    from vitrine.objectives.masked_autoencoder import MaskedAutoencoder
    from vitrine.objectives.masked_patches import MaskedPatches
    from vitrine.objectives.reconstructions import reconstructions
    from vitrine.objectives.self_distillation import SelfDistillation

    preprocess = setting.preprocess
    images = preprocess.normalise(pixels)
    if isinstance(model, (MaskedPatches, MaskedAutoencoder)):
        seen = [*reconstructions(model, images, pixels).unbind(1), lit(model.vit, images, pixels)]
    elif isinstance(model, SelfDistillation):
        from vitrine.runs.unlabelled_evaluation import EVALUATION_SEED

        large, small = parts_of(pixels.float(), rows, EVALUATION_SEED)
        cut = [preprocess.denormalise(large[:, view]) for view in range(large.shape[1])]
        cut += [
            enlarged(preprocess.denormalise(small[:, view]), preprocess.size)
            for view in range(small.shape[1])[:2]
        ]
        seen = [pixels, *cut, lit(model.teacher.vit, images, pixels)]
    else:
        vit, teacher = model.vit, setting.teacher
        assert isinstance(vit, ViT) and teacher is not None
        seen = [pixels, lit(vit, images, pixels)]
        if isinstance(teacher.model, ViT):
            given = torch.cat(list(teacher.pieces(pixels.float())))
            seen.append(lit(teacher.model, given, pixels))
    return torch.stack(seen, dim=1)


def enlarged(pixels: "Tensor", size: tuple[int, int]) -> "Tensor":
    """Enlarge uint8 pictures to the size of the others on the sheet, their pixels kept visible."""
    from torch.nn import functional as F

    return F.interpolate(pixels, size=size, mode="nearest")


def lit(vit: "ViT", images: "Tensor", pixels: "Tensor") -> "Tensor":
    """Light pixels (B, C, height, width) by what the class token of the last layer looks at, heads averaged."""
    import numpy as np
    import torch

    from vitrine.inspection.heads import attention_from
    from vitrine.inspection.rollout import upsample
    from vitrine.runtime.progress import quiet

    with quiet():
        maps = attention_from(vit, images, layers=[-1])[:, 0].mean(axis=1)  # (B, GH, GW)
    low, high = maps.min(axis=(1, 2), keepdims=True), maps.max(axis=(1, 2), keepdims=True)
    maps = (maps - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
    light = torch.from_numpy(upsample(maps, (pixels.shape[2], pixels.shape[3])))[:, None].to(pixels.device)
    shown = pixels.float() * (LEAST_LIGHT + (1 - LEAST_LIGHT) * light.float())
    return shown.round().clamp(0, 255).to(torch.uint8)
