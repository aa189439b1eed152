"""Whether a representation has collapsed: how many directions it uses, and how far apart images are.

Shapes: N images, D features, K outputs.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

# Below any of these, all images look the same; fresh and trained models are well above (tests check both sides).
COLLAPSED_RANK = 2.0
COLLAPSED_SPREAD = 0.02
COLLAPSED_INFORMATION = 0.01


def effective_rank(features: Tensor) -> float:
    """Count the directions that features (N, D) use: exp of the entropy of their singular values, 0 to min(N, D).

    As RankMe (arXiv:2210.02885), but on centred features: an offset shared by all images carries no information.
    """
    rows = features.double()
    values = torch.linalg.svdvals(rows - rows.mean(dim=0))
    # For equal rows, only rounding errors are left; they are not directions.
    values = values[values > len(rows) * torch.finfo(torch.float32).eps * rows.abs().amax()]
    if not len(values):
        return 0.0
    shares = values / values.sum()
    return float(torch.exp(-(shares * shares.log()).sum()))


def spread(features: Tensor) -> float:
    """Return the deviation of unit-length features times sqrt(D): 0 when collapsed, about 1 in all directions.

    As in SimSiam (arXiv:2011.10566, section 4.1).
    """
    unit = F.normalize(features.double(), dim=1)
    return float(unit.std(dim=0, correction=0).mean() * unit.shape[1] ** 0.5)


def collapse_warning(
    *, rank: float, spread: float, information: float | None = None, num_outputs: int | None = None
) -> str | None:
    """Return a sentence that names the signs of collapse; None if there are none."""
    signs = []
    if rank < COLLAPSED_RANK:
        signs.append(f"features use {rank:.2f} directions")
    if spread < COLLAPSED_SPREAD:
        signs.append(f"the spread of features is {spread:.3f} (1 = all directions)")
    if information is not None and num_outputs is not None:
        share = information / math.log(max(num_outputs, 2))
        if share < COLLAPSED_INFORMATION:
            signs.append(f"the teacher's outputs carry {100 * share:.1f} % of the possible information")
    return f"The representation has collapsed: {'; '.join(signs)}" if signs else None
