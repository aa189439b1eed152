"""Compare ways to notice a picture of none of the classes, on frozen features: the tables of docs/experiments.md.

    python benchmarks/none_of_these.py FAMILIAR.npz --others NAME=OTHER.npz ... --leave-out 9 --draws 5

The files come from benchmarks/frozen_features.py. Statistics are fitted on the training pictures of FAMILIAR; its
test pictures are familiar. Pictures of the other files are unfamiliar, and so are, draw by draw, the test pictures of
classes that were left out of the training pictures. Reports the area under the ROC curve and the share of unfamiliar
pictures that pass where 95 % of the familiar ones do (false alarms at 95 %).
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.evaluation.closed_form import L2_CHOICES, fit_closed_form
from vitrine.evaluation.familiarity import area_under_curve, fit_distance

Score = Callable[[Tensor], Tensor]
"""From features (M, D) to how unfamiliar each is (M,)."""
NEIGHBOURS = 10


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("familiar", type=Path)
    parser.add_argument("--others", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--leave-out", type=int, default=9)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    rows, labels, is_test = read(options.familiar)
    others = {name: read(Path(file))[0] for name, _, file in (one.partition("=") for one in options.others)}
    tables: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for method, score in methods(rows[~is_test], labels[~is_test]).items():
        familiar = score(rows[is_test])
        for name, pictures in others.items():
            tables.setdefault(name, {})[method] = [compared(familiar, score(pictures))]
    num_classes = int(labels.max()) + 1
    for draw in range(options.draws):
        left_out = torch.from_numpy(np.random.default_rng(draw).permutation(num_classes)[: options.leave_out])
        is_left_out = torch.isin(labels, left_out)
        train = ~is_test & ~is_left_out
        for method, score in methods(rows[train], numbered(labels[train])).items():
            pair = compared(score(rows[is_test & ~is_left_out]), score(rows[is_test & is_left_out]))
            tables.setdefault("classes left out", {}).setdefault(method, []).append(pair)
    show(tables)
    if options.out is not None:
        options.out.write_text(json.dumps(tables, indent=2))


def read(file: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Read features (N, D), labels (N,) and which pictures are of the test set (N,)."""
    arrays = np.load(file)
    return (
        torch.from_numpy(arrays["features"]).double(),
        torch.from_numpy(arrays["labels"]).long(),
        torch.from_numpy(arrays["split"]) == 1,
    )


def numbered(labels: Tensor) -> Tensor:
    """Number the classes that occur from 0."""
    return torch.unique(labels, return_inverse=True)[1]


def methods(rows: Tensor, labels: Tensor) -> dict[str, Score]:
    """Fit every method on training features (N, D) and labels (N,)."""
    num_classes = int(labels.max()) + 1
    closed_form = fit_closed_form(rows, labels, num_classes=num_classes, l2=L2_CHOICES)

    def logits(features: Tensor) -> Tensor:
        scores = closed_form.sharpness * closed_form.scores(features)
        return scores - scores.mean(
            1, keepdim=True
        )  # softmax ignores the mean; the virtual logit needs it to be 0

    means = torch.stack([rows[labels == k].mean(0) for k in range(num_classes)])  # (K, D)
    within = whitening(rows - means[labels])
    whole = whitening(rows - rows.mean(0))
    bank = F.normalize(rows, dim=1)
    return {
        "maximum softmax": lambda features: -logits(features).softmax(1).amax(1),
        "energy": lambda features: -logits(features).logsumexp(1),
        "Mahalanobis": lambda features: nearest(features, means, within),
        "relative Mahalanobis": lambda features: (
            nearest(features, means, within) - nearest(features, rows.mean(0)[None], whole)
        ),
        f"{NEIGHBOURS} nearest neighbours": lambda features: (
            1 - (F.normalize(features, dim=1) @ bank.T).topk(min(NEIGHBOURS, len(bank)), dim=1).values[:, -1]
        ),
        "residual": residual(rows),
        "virtual logit": virtual_logit(rows, logits),
        "Vitrine": fit_distance(rows, labels),
    }


def whitening(centred: Tensor) -> Tensor:
    """Return W (D, D) for which the rows times W have the identity as covariance, a little shrunk."""
    covariance = centred.T @ centred / len(centred)
    shrunk = covariance + 1e-3 * covariance.diagonal().mean() * torch.eye(len(covariance))
    values, vectors = torch.linalg.eigh(shrunk)
    return vectors / values.sqrt()


def nearest(features: Tensor, means: Tensor, whiten: Tensor) -> Tensor:
    """Squared Mahalanobis distance to the nearest mean: (M,)."""
    return torch.cdist(features @ whiten, means @ whiten).square().amin(1)


def residual(rows: Tensor) -> Score:
    """Length outside of the principal subspace of the training features."""
    mean = rows.mean(0)
    vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean)).eigenvectors
    rest = vectors[:, : rows.shape[1] // 2]  # the lowest half of the variance
    return lambda features: ((features - mean) @ rest).norm(dim=1)


def virtual_logit(rows: Tensor, logits: Score) -> Score:
    """ViM (arXiv:2203.10807): the residual as one more logit, scaled to the others."""
    length = residual(rows)
    scale = logits(rows).amax(1).mean() / length(rows).mean()
    return lambda features: scale * length(features) - logits(features).logsumexp(1)


def compared(familiar: Tensor, unfamiliar: Tensor) -> tuple[float, float]:
    """Return the area under the ROC curve, and the false alarms at 95 %."""
    threshold = torch.quantile(familiar, 0.95)
    return area_under_curve(familiar, unfamiliar), (unfamiliar <= threshold).double().mean().item()


def show(tables: dict[str, dict[str, list[tuple[float, float]]]]) -> None:
    names = list(tables)
    print("| method | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for method in tables[names[0]]:
        cells = []
        for name in names:
            areas, passed = np.array(tables[name][method]).T
            spread = f" ± {areas.std(ddof=1):.3f}" if len(areas) > 1 else ""
            cells.append(f"{areas.mean():.3f}{spread}; {100 * passed.mean():.1f} %")
        print(f"| {method} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
