"""Crops of a picture and of its mask together, in the workers: to (C + 1, H, W) uint8, the mask last."""

from dataclasses import dataclass

import numpy as np
import torch

from vitrine.data.decoding.annotation import IGNORED, Annotation
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.preparing.annotated_crop import AnnotatedCrop
from vitrine.data.preparing.training_view import Numbers


@dataclass(frozen=True, kw_only=True)
class MaskView(AnnotatedCrop):
    """A random scale, crop and flip. Padding is grey, and ignored in the mask."""

    @property
    def channels(self) -> int:
        """Planes of the result: those of the picture, and the mask."""
        return self.image_channels + 1

    def render_annotated(
        self,
        data: bytes | Pixels,
        annotation: Annotation,
        *,
        name: str,
        numbers: Numbers | None,
        out: torch.Tensor,
    ) -> None:
        """Decode a picture and write its crop and that of its mask into `out`, (C + 1, H, W) uint8."""
        assert annotation.classes is not None
        placed = self.place(data, annotation, name=name, numbers=numbers, out=out)
        rows, columns = placed.size
        out[-1].fill_(IGNORED)
        out[-1, :rows, :columns] = torch.from_numpy(np.ascontiguousarray(placed.of_map(annotation.classes)))
