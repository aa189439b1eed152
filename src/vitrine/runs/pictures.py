"""Pictures during training: the objective's view of a few validation images, one file per evaluation.

Shapes: B images of C channels.
"""

import io
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitrine.data.loading.loader import Batch, Loader
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import CheckpointError
from vitrine.inspection.heads import attention_from
from vitrine.inspection.rollout import upsample
from vitrine.models import ViT
from vitrine.objectives.objective import Objective, RunContext
from vitrine.runtime.devices import seeded
from vitrine.runtime.progress import notice, quiet
from vitrine.runtime.run_folder import RunFolder

# Images side by side, and white pixels between them.
MOST_PICTURES = 8
GAP = 2
# Brightness of pixels without attention, so that the image can still be recognised.
LEAST_LIGHT = 0.15
PICTURE_SEED = 0


def make_drawing(
    objective: Objective, context: RunContext, source: Source, folder: RunFolder
) -> Callable[[nn.Module, int], None]:
    """Return the function that writes the picture of an evaluation, on the first process."""

    def draw(module: nn.Module, step: int) -> None:
        if not context.processes.is_first:
            return
        batch = first_images(source, context.preprocess, context.processes.device)
        with seeded(PICTURE_SEED):
            rows = objective.pictures(module, batch.images, batch.rows, context, attention_lit)
        try:
            folder.write_picture(step, as_png(rows))
        except CheckpointError as error:
            notice(f"No pictures at step {step}: {error}")

    return draw


def first_images(source: Source, preprocess: Preprocess, device: torch.device) -> Batch:
    """Read the first images of a split."""
    count = min(len(source), MOST_PICTURES)
    some = Subset(source, np.arange(count))
    with Loader(some, preprocess, batch_size=count, num_workers=0, device=device) as loader:
        return next(iter(loader.evaluation_batches()))


def as_png(rows: list[Tensor]) -> bytes:
    """Lay out rows of pictures (B, C, height, width) uint8 as one PNG, with gaps."""
    pictures = torch.stack(rows, dim=1)[:, :, :3].cpu()  # (B, rows, C, H, W)
    padded = torch.nn.functional.pad(pictures, (0, GAP, 0, GAP), value=255)
    sheet = padded.permute(1, 3, 0, 4, 2)  # (rows, H, B, W, C)
    pixels = sheet.reshape(sheet.shape[0] * sheet.shape[1], sheet.shape[2] * sheet.shape[3], -1).numpy()
    png = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] < 3 else pixels).save(png, "PNG")
    return png.getvalue()


def attention_lit(vit: ViT, images: Tensor, pixels: Tensor) -> Tensor:
    """Light pixels (B, C, height, width) by the attention of the class token in the last block, heads averaged."""
    with quiet():
        maps = attention_from(vit, images, layers=[-1])[:, 0].mean(axis=1)  # (B, GH, GW)
    low, high = maps.min(axis=(1, 2), keepdims=True), maps.max(axis=(1, 2), keepdims=True)
    maps = (maps - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
    light = torch.from_numpy(upsample(maps, (pixels.shape[2], pixels.shape[3])))[:, None].to(pixels.device)
    lightened = pixels.float() * (LEAST_LIGHT + (1 - LEAST_LIGHT) * light.float())
    return lightened.round().clamp(0, 255).to(torch.uint8)
