"""Choose the images to label next: those that the model is uncertain about, and that differ from each other.

Images are drawn one after another as k-means++ draws its centres (Arthur and Vassilvitskii, 2007), in the space of
the gradients of the head (BADGE, arXiv:1906.03671): long where the model is uncertain, in other directions where
images differ. A gradient is the product of two vectors, so distances need no more memory than these.

Shapes: N images, D features, K classes.
"""

import torch
from torch import Tensor


def choose_to_label(features: Tensor, probabilities: Tensor, *, count: int, seed: int = 0) -> Tensor:
    """Return `count` rows of features (N, D) and probabilities (N, K), the most worthwhile to label first."""
    rows = (features - features.mean(dim=0)).double()
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)
    errors = (
        probabilities.double().clone()
    )  # (N, K): the gradient of the loss by the logits, if the answer were true
    errors[torch.arange(len(rows)), errors.argmax(dim=1)] -= 1
    count = min(count, len(rows))
    generator = torch.Generator().manual_seed(seed)
    lengths = errors.square().sum(dim=1)  # (N,), as features have length 1
    chosen = [int(lengths.argmax())]
    nearest = _squared_distances(rows, errors, lengths, chosen[0])
    while len(chosen) < count:
        nearest[chosen] = 0
        if float(nearest.sum()) <= 0:  # copies of chosen images only
            rest = [row for row in range(len(rows)) if row not in set(chosen)]
            chosen += rest[: count - len(chosen)]
            break
        chosen.append(int(torch.multinomial(nearest, 1, generator=generator)))
        nearest = torch.minimum(nearest, _squared_distances(rows, errors, lengths, chosen[-1]))
    return torch.tensor(chosen)


def _squared_distances(rows: Tensor, errors: Tensor, lengths: Tensor, centre: int) -> Tensor:
    """Distances of the outer products errors x rows to that of `centre`: (N,)."""
    products = (rows @ rows[centre]) * (errors @ errors[centre])
    return (lengths + lengths[centre] - 2 * products).clamp_min(0)
