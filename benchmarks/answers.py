"""The closed form, its calibration and fine-tuning from it, on draws of a few photos per class.

    python benchmarks/answers.py pets cub cars --models box,dinov2.onnx --shots 20 --draws 3 --finetune

DATA is a folder with class folders below train/ and test/, or an .npz of features (N, R), labels (N,) and split (N,),
0 for training and 1 for test; features cannot be fine-tuned. `--tail 10` draws ever fewer photos of later classes,
down to a tenth; `--grow 0.2` leaves that part of the classes out and adds them afterwards.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import vitrine
from vitrine.data.sources.opening import open_splits
from vitrine.data.sources.source import Source
from vitrine.evaluation.calibration import calibration_error
from vitrine.evaluation.class_statistics import ClassStatistics
from vitrine.evaluation.closed_form import fit_closed_form
from vitrine.evaluation.features import extract_features

STARTS = {"fine-tuned from closed form": (), "fine-tuned from zeros": ("solves_head=false",)}


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Features and labels to draw from, and those to test on."""

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    source: Source | None = None
    """The training images, where they are files."""

    @property
    def num_classes(self) -> int:
        return int(self.train_labels.max()) + 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--models", default="box")
    parser.add_argument("--shots", type=int, default=20)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--tail", type=float, default=1.0)
    parser.add_argument("--grow", type=float, default=0.0)
    parser.add_argument("--finetune", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    for data in options.data:
        for model in options.models.split(",") if data.is_dir() else ["features"]:
            measure(read(data, model, options), data, model, options)


def measure(pool: Pool, data: Path, model: str, options: argparse.Namespace) -> None:
    """Print a line per method: mean accuracy, macro accuracy and calibration error over the draws."""
    results: dict[str, list[tuple[float, float, float, float]]] = {}
    for seed in range(options.draws):
        chosen = draw(pool, options.shots, tail=options.tail, seed=seed)
        for name, logits, seconds in methods(pool, chosen, options, data=data, model=model):
            own = pool.test_labels
            right = (logits.argmax(dim=1) == own).double()
            macro = torch.stack([right[own == label].mean() for label in own.unique()]).mean()
            error = calibration_error(logits.float(), own) or 0.0
            results.setdefault(name, []).append((float(right.mean()), float(macro), error, seconds))
    print(f"{pool.name} with {model}: {options.shots} per class, {len(pool.test):,} test images", flush=True)
    for name, rows in results.items():
        accuracy, macro, error, seconds = np.mean(rows, axis=0)
        spread = np.std([row[0] for row in rows])
        print(
            f"  {name:28} {100 * accuracy:5.1f} % +- {100 * spread:.1f}, macro {100 * macro:5.1f} %, "
            f"calibration error {100 * error:4.1f} %, {seconds:.1f} s"
        )
    if options.grow:
        print(f"  {growth(pool, options)}")


def methods(
    pool: Pool, chosen: Tensor, options: argparse.Namespace, *, data: Path, model: str
) -> Iterator[tuple[str, Tensor, float]]:
    """Yield the test logits and seconds of every method on one draw."""
    rows, labels, num_classes = pool.train[chosen], pool.train_labels[chosen], pool.num_classes

    def fitted(**settings: object) -> Callable[[], Tensor]:
        return lambda: fit_closed_form(rows, labels, num_classes=num_classes, **settings).logits(pool.test)

    yield "closed form", *timed(fitted())
    if options.tail > 1:
        yield "closed form, balanced", *timed(fitted(is_balanced=True))
    yield "ridge, the paper's l2", *timed(fitted(l2=1024.0))
    yield (
        "scikit-learn, C = 0.1",
        *timed(lambda: scikit_learn(rows, labels, pool.test, num_classes=num_classes)),
    )
    if options.finetune and pool.source is not None:
        for name, settings in STARTS.items():
            work = partial(finetuned, pool, chosen, options, data=data, model=model, settings=settings)
            yield name, *timed(work)


def timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """Return a result and the seconds that it took."""
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def scikit_learn(rows: Tensor, labels: Tensor, test: Tensor, *, num_classes: int) -> Tensor:
    """Return the logits of standardised logistic regression by scikit-learn."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    probabilities = model.fit(rows.numpy(), labels.numpy()).predict_log_proba(test.numpy())
    logits = torch.full((len(test), num_classes), -1e3, dtype=torch.float64)
    logits[:, torch.from_numpy(model.classes_)] = torch.from_numpy(probabilities).double()
    return logits


def finetuned(
    pool: Pool,
    chosen: Tensor,
    options: argparse.Namespace,
    *,
    data: Path,
    model: str,
    settings: tuple[str, ...],
) -> Tensor:
    """Fine-tune on the drawn photos and return the logits of the test images."""
    assert pool.source is not None
    with tempfile.TemporaryDirectory() as temporary:
        for row in chosen.tolist():
            path = pool.source.path(row)
            assert path is not None
            name = pool.source.classes[int(pool.source.labels[row])]
            folder = Path(temporary) / "photos" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / path.name).symlink_to(path.resolve())
        run = vitrine.finetune(
            Path(temporary) / "photos", model=model, out=Path(temporary) / "run", steps=options.steps,
            size=options.size, set=settings, workers=options.workers,
        )  # fmt: skip
        predictor = vitrine.Predictor.open(run.model, workers=options.workers)
        test = open_splits(str(data), val_fraction=0)["test"]
        return predictor.logits([test.path(row) for row in range(len(test))]).rows.double()


def growth(pool: Pool, options: argparse.Namespace) -> str:
    """Fit on some classes, add the others from their photos alone, and measure what the first ones lost."""
    old = pool.num_classes - round(options.grow * pool.num_classes)
    before, after, together, new = [], [], [], []
    for seed in range(options.draws):
        chosen = draw(pool, options.shots, tail=1.0, seed=seed)
        rows, labels = pool.train[chosen], pool.train_labels[chosen]
        is_old, tests_old = labels < old, pool.test_labels < old
        first = ClassStatistics.of(rows[is_old], labels[is_old], num_classes=old)
        second = ClassStatistics.of(rows[~is_old], labels[~is_old] - old, num_classes=pool.num_classes - old)
        grown = scores(first.followed_by(second), pool.test).argmax(dim=1)
        alone = scores(first, pool.test[tests_old]).argmax(dim=1)
        every = fit_closed_form(rows, labels, num_classes=pool.num_classes).scores(pool.test).argmax(dim=1)
        right = (grown == pool.test_labels).double()
        before.append(float((alone == pool.test_labels[tests_old]).double().mean()))
        after.append(float(right[tests_old].mean()))
        new.append(float(right[~tests_old].mean()))
        together.append(float((every == pool.test_labels)[tests_old].double().mean()))
    return (
        f"growing from {old} to {pool.num_classes} classes: old classes {100 * np.mean(before):.1f} % before, "
        f"{100 * np.mean(after):.1f} % after (all photos at once: {100 * np.mean(together):.1f} %); new classes "
        f"{100 * np.mean(new):.1f} %"
    )


def scores(statistics: ClassStatistics, rows: Tensor) -> Tensor:
    """Score rows (M, R) by the discriminant of some classes."""
    weight, bias = statistics.head()
    return rows.double() @ weight.T + bias


def draw(pool: Pool, shots: int, *, tail: float, seed: int) -> Tensor:
    """Draw photos of every class, `shots` of the first and 1 / `tail` as many of the last."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for label in range(pool.num_classes):
        count = max(round(shots * tail ** (-label / max(pool.num_classes - 1, 1))), 2)
        rows = torch.nonzero(pool.train_labels == label)[:, 0]
        parts.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    return torch.cat(parts)


def read(data: Path, model: str, options: argparse.Namespace) -> Pool:
    """Read features from a file, or compute those of a folder."""
    if data.suffix == ".npz":
        with np.load(data) as stored:
            rows, labels = torch.from_numpy(stored["features"]), torch.from_numpy(stored["labels"]).long()
            is_test = torch.from_numpy(stored["split"] == 1)
        return Pool(
            name=data.stem, train=rows[~is_test], train_labels=labels[~is_test], test=rows[is_test],
            test_labels=labels[is_test],
        )  # fmt: skip
    splits = open_splits(str(data), val_fraction=0)
    loaded = vitrine.load(model, image_size=options.size)
    both = [
        extract_features(
            loaded.model, splits[name], preprocess=loaded.preprocess, num_workers=options.workers
        )
        for name in ("train", "test")
    ]
    (train, test), labels = both, [torch.from_numpy(part.labels.astype(np.int64)) for part in both]
    return Pool(
        name=data.name, train=train.rows, train_labels=labels[0], test=test.rows, test_labels=labels[1],
        source=splits["train"],
    )  # fmt: skip


if __name__ == "__main__":
    main()
