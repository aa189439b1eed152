"""The inside of a trained ViT in numbers: similarity of its position embeddings, distance of its attention."""

import numpy as np
from torch import Tensor

from vitrine.inspection.heads import attention_distance
from vitrine.inspection.similarity import position_similarity
from vitrine.models import Model

# As many images as in Figs. 7 and 11.
NUM_IMAGES = 128
SIMILARITY, DISTANCE = "similarity", "distance"


def similarity_by_offset(model: Model) -> dict[str, float]:
    """Return the mean cosine similarity of the position embeddings of patches so many rows and columns apart.

    The names are `similarity_ROWS_COLUMNS`; a patch and itself are left out.
    """
    cosines = position_similarity(model)
    rows, columns = cosines.shape[1:]
    pairs = cosines.reshape(rows, columns, rows, columns)
    down, across = (np.abs(np.subtract.outer(np.arange(side), np.arange(side))) for side in (rows, columns))
    means = {}
    for row in range(rows):
        for column in range(columns):
            is_apart = (down == row)[:, None, :, None] & (across == column)[None, :, None, :]
            if row or column:
                means[f"{SIMILARITY}_{row}_{column}"] = float(pairs[is_apart].mean())
    return means


def distance_by_head(model: Model, images: Tensor) -> dict[str, float]:
    """Return the mean attention distance of every head in pixels, over normalised images (B, C, height, width).

    The names are `distance_LAYER_HEAD`.
    """
    distances = attention_distance(model, images)
    return {
        f"{DISTANCE}_{layer}_{head}": float(distances[layer, head])
        for layer in range(distances.shape[0])
        for head in range(distances.shape[1])
    }
