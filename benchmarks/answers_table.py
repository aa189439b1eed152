"""Closed form, fine-tuning and what a model knows about itself, on a few photos per class: many runs side by side.

    python benchmarks/answers_table.py pack /data/pets /data/cub /data/cars --out packs
    python benchmarks/answers_table.py run packs out --models box,dinov2=dinov2.safetensors --jobs 8 --minutes 9

`pack` shrinks photos to a short side of 256 px. `run` decodes them once, then trains every arm on every draw, several
processes on one device, and appends a line to results.jsonl as each ends; the tables at the end are made of these
lines. A run that was interrupted continues. Arms: `closed` (finetune --fast), `before` (from a head of zeros, without
averages, the best evaluation), `new` (the defaults), `left-out` (the defaults without some classes), `features` (the
model's own features of all photos, in an .npz for answers.py), variations, and those of partial_training.py (LoRA,
biases, the last blocks, the head). `--logits` keeps the logits of held-out and test photos, to fit temperatures anew.
"""

import argparse
import io
import json
import math
import multiprocessing
import os
import queue
import random
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from partial_training import ARMS as PARTIAL
from partial_training import most_memory, size_of
from PIL import Image
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import normalize

import vitrine
from vitrine.data.sources.opening import register_source
from vitrine.data.sources.source import Example, Source
from vitrine.evaluation.calibration import CalibrationFit, calibration_error
from vitrine.evaluation.familiarity import area_under_curve, fit_distance
from vitrine.evaluation.features import logits_and_features
from vitrine.evaluation.outputs import Outputs, run_model
from vitrine.evaluation.prediction_sets import prediction_sets
from vitrine.evaluation.trust import read_trust
from vitrine.runs import cross_validation, fast_run, fold_training, run_end, solved_head, train_run
from vitrine.runs.mixing import between, saved_weights
from vitrine.runtime.run_folder import RunFolder
from vitrine.training.saving import newest_state, weights_of

SIDE, LONGEST, QUALITY = 256, 512, 70
COVERAGES = (0.8, 0.9, 0.95)
BEFORE = (
    "solves_head=false", "mixes_start=false", "few_images=0", "fewest_steps=0", "training.average_decay=null",
    "training.patience=null",
)  # fmt: skip
# Arms by name: settings of `finetune`, and constants of the cross-validation.
ARMS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "closed": ((), {}),
    "features": ((), {}),
    "before": (BEFORE, {}),
    "new": ((), {}),
    "left-out": ((), {}),
    "left-out-closed": ((), {}),
    "one-split": (("few_images=0",), {}),
    "folds": (("few_images=100000",), {}),
    "long-folds": (("few_images=100000",), {"SHARE_OF_PASSES": 1.0}),
    "five-folds": (("few_images=100000",), {"FOLDS": 5, "SHARE_OF_PASSES": 0.5}),
    "low-rate": (("training.lr=1e-4",), {}),
    "high-rate": (("training.lr=1e-3",), {}),
    "more-decay": (("training.layer_decay=0.65",), {}),
    # From a head that is surer than the default start, and from a head of zeros with today's averages.
    "solved": ((), {"START_SCALE": 1.0}),
    "soft": ((), {"START_SCALE": 0.3}),
    "averaged": (("solves_head=false", "mixes_start=false", "few_images=0"), {}),
    **{name: ((), {}) for name in PARTIAL},
}
# Logits and labels of the photos that the temperature of the last run was fitted on.
HELD_OUT: dict[str, np.ndarray] = {}
LEFT_OUT = 9  # classes
# Pictures of other sets that are shown to a model, and test photos that are classified along the line.
SHOWN, FOLLOWED = 500, 1000
NOT_FOLLOWED = (
    "closed", "before", "averaged", "left-out", "left-out-closed",  # without a closed form
    *PARTIAL,
)  # fmt: skip
BINS = 15
MAIN = ("features", "before", "new", "closed")
# Arms that are tried on Pets alone, and on all sets but Pets.
ONLY_SMALL = ("left-out", "left-out-closed", "one-split", "five-folds")
ONLY_LARGE = ("folds", "low-rate", "high-rate", "solved", "soft", "averaged")


# --- photos ---------------------------------------------------------------------------------------------------------


def pack(options: argparse.Namespace) -> None:
    """Write one file per data set: the bytes of the photos, one after another."""
    options.out.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    with ProcessPoolExecutor(options.jobs) as pool:
        for data in options.data:
            train, test = listed(data)
            classes = sorted(train)
            items: list[tuple[Path, int, int]] = []
            for number, name in enumerate(classes):
                files = list(train[name])
                generator.shuffle(files)
                items += [(file, number, 0) for file in files[: options.train]]
            tests = [(file, number, 1) for number, name in enumerate(classes) for file in test[name]]
            generator.shuffle(tests)
            items += tests[: options.test]
            photos = list(pool.map(shrunk, [(file, split == 1) for file, _, split in items], chunksize=16))
            np.savez(
                options.out / f"{data.name}.npz", bytes=np.frombuffer(b"".join(photos), np.uint8),
                sizes=np.array(list(map(len, photos))), labels=np.array([item[1] for item in items]),
                split=np.array([item[2] for item in items]), classes=np.array(classes),
                names=np.array([item[0].name for item in items]),
            )  # fmt: skip
            print(f"{data.name}: {len(items):,} photos, {sum(map(len, photos)) / 1e6:.1f} MB", flush=True)


def listed(data: Path) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """List training and test photos by class: of Oxford-IIIT Pets by its lists, of others by folders."""
    if not (data / "annotations").is_dir():
        folders = [
            sorted(path for path in (data / split).iterdir() if path.is_dir()) for split in ("train", "test")
        ]
        train, test = ({folder.name: sorted(folder.iterdir()) for folder in each} for each in folders)
        return train, test
    both = []
    for file in ("trainval.txt", "test.txt"):
        photos: dict[str, list[Path]] = {}
        for line in (data / "annotations" / file).read_text().splitlines():
            path = data / "images" / f"{line.split()[0]}.jpg"
            if path.exists():
                photos.setdefault(path.stem.rpartition("_")[0], []).append(path)
        both.append(photos)
    return both[0], both[1]


def shrunk(item: tuple[Path, bool]) -> bytes:
    """Resize a photo to a short side of 256 px, to a square in the middle if it is for testing; encode it as WebP."""
    path, is_square = item
    with Image.open(path) as opened:
        opened.draft("RGB", (2 * SIDE, 2 * SIDE))
        image = opened.convert("RGB")
    scale = SIDE / min(image.size)
    width, height = (max(SIDE, round(side * scale)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    across, down = (SIDE, SIDE) if is_square else (min(width, LONGEST), min(height, LONGEST))
    left, top = (width - across) // 2, (height - down) // 2
    written = io.BytesIO()
    image.crop((left, top, left + across, top + down)).save(written, "WEBP", quality=QUALITY, method=4)
    return written.getvalue()


def unpack(packs: Path, out: Path, *, jobs: int) -> list[str]:
    """Decode every photo once, into one file of pixels per data set; return the names of the sets."""
    names = sorted(path.stem for path in packs.glob("*.npz"))
    with ProcessPoolExecutor(jobs) as pool:
        for name in names:
            if (out / f"{name}-index.npz").exists():
                continue
            with np.load(packs / f"{name}.npz") as stored:
                arrays = {key: stored[key] for key in stored.files}
            ends = np.cumsum(arrays["sizes"])
            whole = arrays["bytes"].tobytes()
            photos = [whole[end - size : end] for end, size in zip(ends, arrays["sizes"], strict=True)]
            shapes = []
            with (out / f"{name}.pixels").open("wb") as file:
                for pixels in pool.map(decoded, photos, chunksize=32):
                    shapes.append(pixels.shape[:2])
                    file.write(pixels.tobytes())
            np.savez(
                out / f"{name}-index.npz", shapes=np.array(shapes),
                **{key: arrays[key] for key in ("labels", "split", "classes", "names")},
            )  # fmt: skip
    return names


def decoded(photo: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(photo)).convert("RGB"))


class Packed(Source):
    """Some photos of a decoded set."""

    def __init__(
        self, folder: Path, name: str, rows: np.ndarray, labels: np.ndarray, classes: Sequence[str]
    ) -> None:
        index, self.starts, self.pixels = opened_set(folder, name)
        self.shapes, self.names = index["shapes"], index["names"]
        self.rows, self.labels, self.classes = rows, labels.astype(np.int32), tuple(classes)
        self.address = f"packed:{name}"

    def name(self, index: int) -> str:
        return f"{self.classes[self.labels[index]]}/{self.names[self.rows[index]]}"

    def size(self, index: int) -> int:
        height, width = self.shapes[self.rows[index]]
        return int(height * width * 3)

    def read(self, index: int) -> Example:
        row, label = self.rows[index], int(self.labels[index])
        start = self.starts[row]
        pixels = self.pixels[start : start + self.size(index)].reshape(*self.shapes[row], 3)
        return Example(data=np.ascontiguousarray(pixels), label=label, name=self.name(index))


@cache
def opened_set(folder: Path, name: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Map the pixels of a set into memory."""
    with np.load(folder / f"{name}-index.npz") as stored:
        index = {key: stored[key] for key in stored.files}
    sizes = 3 * index["shapes"].astype(np.int64).prod(axis=1)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return index, starts, np.memmap(folder / f"{name}.pixels", dtype=np.uint8, mode="r")


def part_of(
    folder: Path, name: str, *, split: str, draw: int = 0, shots: int = 20, left_out: int = 0
) -> Packed:
    """Return the drawn training photos, all test photos, or the test photos of the classes that are left out."""
    index, _, _ = opened_set(folder, name)
    order = np.random.default_rng(draw).permutation(len(index["classes"]))
    kept = np.sort(order[left_out:])
    wanted = np.sort(order[:left_out]) if split == "unknown" else kept
    rows = np.flatnonzero((index["split"] == (split != "train")) & np.isin(index["labels"], wanted))
    if split == "train":
        generator = np.random.default_rng(100 + draw)
        parts = [generator.permutation(rows[index["labels"][rows] == label])[:shots] for label in kept]
        rows = np.sort(np.concatenate(parts))
    labels = np.searchsorted(wanted, index["labels"][rows])
    return Packed(folder, name, rows, labels, index["classes"][wanted].tolist())


class PackedKind:
    """`packed:FOLDER:SET:DRAW:SHOTS:LEFT_OUT`, the training photos of a draw."""

    @staticmethod
    def recognises(address: str) -> bool:
        return address.startswith("packed:")

    @staticmethod
    def open_all(address: str) -> dict[str, Source]:
        _, folder, name, draw, shots, left_out = address.split(":")
        train = part_of(
            Path(folder), name, split="train", draw=int(draw), shots=int(shots), left_out=int(left_out)
        )
        return {"all": train}


# --- one run --------------------------------------------------------------------------------------------------------


def run_arm(job: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Train one arm on one draw and measure it on the test photos."""
    folder, arm, name = options.scratch, job["arm"], job["set"]
    if arm == "features":
        return embedded(job, options)
    settings, constants = ARMS[arm]
    HELD_OUT.clear()
    for constant, value in {"FOLDS": 3, "SHARE_OF_PASSES": 0.5, "START_SCALE": 0.1, **constants}.items():
        setattr(solved_head if constant == "START_SCALE" else fold_training, constant, value)
    left_out = min(LEFT_OUT, len(opened_set(folder, name)[0]["classes"]) // 2) if "left-out" in arm else 0
    run = folder / "runs" / "-".join(map(str, job.values()))
    began = time.monotonic()
    result = vitrine.finetune(
        f"packed:{folder}:{name}:{job['draw']}:{options.shots}:{left_out}", model=options.models[job["model"]],
        out=run, overwrite=True, workers=options.workers, size=options.size, set=(*settings, *options.set),
        fast=arm in ("closed", "left-out-closed"), device=options.device, **PARTIAL.get(arm, {}),
    )  # fmt: skip
    seconds = time.monotonic() - began
    loaded = vitrine.load(result.model)
    temperature = (result.calibration or {}).get("temperature")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded.model.to(device)

    def measured(source: Source) -> tuple[Tensor, Tensor]:
        outputs = run_model(
            loaded.model, source, preprocess=loaded.preprocess, num_workers=options.workers, device=device,
            function=lambda images: torch.cat(logits_and_features(loaded.model, images), dim=1),
        )  # fmt: skip
        count = loaded.model.config.num_classes
        assert count is not None
        return outputs.rows[:, :count], outputs.rows[:, count:]

    test = part_of(folder, name, split="test", draw=job["draw"], left_out=left_out)
    logits, features = measured(test)
    labels = torch.from_numpy(test.labels).long()
    line: dict[str, Any] = {
        **job,
        "seconds": seconds,
        "accuracy": share_right(logits, labels),
        "validation": result.accuracy,
        "steps": result.steps,
        "best_step": result.best_step,
        "contenders": [(one.name, one.accuracy, one.is_saved) for one in result.contenders],
        "temperature": temperature,
        "ece": calibration_error(logits, labels),
        "ece_before": calibration_error(logits * (temperature or 1.0), labels),
        "memory_gib": most_memory(run),
        "saved_mb": None if result.adapter is None else round(size_of(result.adapter), 2),
    }
    keep_outputs(options.out / f"{run.name}.npz", logits, labels, has_logits=options.logits)
    trust = read_trust(result.model)
    if trust.held_out is not None:
        for coverage in COVERAGES:
            if coverage > trust.held_out.most_coverage:
                continue
            thresholds = trust.held_out.thresholds(coverage, num_classes=logits.shape[1])
            sets = prediction_sets(logits.softmax(1), thresholds)
            line[f"coverage {coverage:g}"] = float(sets[np.arange(len(labels)), labels].mean())
            line[f"size {coverage:g}"] = float(sets.sum(1).mean())
    familiarity = trust.familiarity
    if familiarity is not None:
        known = familiarity.distance(features)
        line["flagged"] = float((known > familiarity.threshold).double().mean())
        for other, source in unfamiliar_sets(job, options, left_out=left_out):
            other_logits, other_features = measured(source)
            distances = familiarity.distance(other_features)
            line[f"auroc {other}"] = area_under_curve(known, distances)
            line[f"noticed {other}"] = float((distances > familiarity.threshold).double().mean())
            if left_out:
                train = part_of(
                    folder, name, split="train", draw=job["draw"], shots=options.shots, left_out=left_out
                )
                rows, numbers = measured(train)[1], torch.from_numpy(train.labels).long()
                line["ways"] = {
                    way: area_under_curve(score(logits, features), score(other_logits, other_features))
                    for way, score in ways(rows, numbers).items()
                }
    if job["draw"] == 0 and arm not in NOT_FOLLOWED:
        some = Packed(folder, name, test.rows[:FOLLOWED], test.labels[:FOLLOWED], test.classes)
        line["line"] = along_the_line(run, measured, some, loaded.model)
    if not options.keep:
        shutil.rmtree(run)
    return line


def keep_outputs(file: Path, logits: Tensor, labels: Tensor, *, has_logits: bool) -> None:
    """Keep the confidence of every answer and whether it is right; with `has_logits` also all logits."""
    kept = {
        "confidence": logits.softmax(1).amax(1).numpy().astype(np.float16),
        "right": (logits.argmax(1) == labels).numpy(),
    }
    if has_logits:
        kept |= {**HELD_OUT, "test": logits.half().numpy(), "test_labels": labels.numpy()}
    np.savez_compressed(file, **kept)  # type: ignore[arg-type]


def embedded(job: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Write the features of all photos of a set, by the model as it is."""
    index, _, _ = opened_set(options.scratch, job["set"])
    rows = np.arange(len(index["labels"]))
    photos = Packed(options.scratch, job["set"], rows, index["labels"], index["classes"].tolist())
    loaded = vitrine.load(options.models[job["model"]], image_size=options.size)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.monotonic()
    outputs = run_model(
        loaded.model.to(device), photos, preprocess=loaded.preprocess, num_workers=options.workers, device=device,
        function=lambda images: loaded.model.features(images)["representation"],
    )  # fmt: skip
    np.savez(
        options.out / f"{job['set']}-{job['model']}-features.npz", features=outputs.rows.half().numpy(),
        labels=index["labels"], split=index["split"],
    )  # fmt: skip
    return {**job, "seconds": time.monotonic() - began, "embedded": len(rows)}


def share_right(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(1) == labels).double().mean())


def unfamiliar_sets(
    job: Mapping[str, Any], options: argparse.Namespace, *, left_out: int
) -> list[tuple[str, Source]]:
    """Return pictures of none of the classes: of the classes left out, or of the other sets."""
    if left_out:
        unknown = part_of(options.scratch, job["set"], split="unknown", draw=job["draw"], left_out=left_out)
        return [("unknown", unknown)]
    if job["arm"] not in ("closed", "new") or job["set"] != "pets":
        return []
    others = [other for other in options.sets if other != job["set"]]
    whole = {other: part_of(options.scratch, other, split="test") for other in others}
    return [
        (other, Packed(options.scratch, other, one.rows[:SHOWN], one.labels[:SHOWN], one.classes))
        for other, one in whole.items()
    ]


def ways(rows: Tensor, labels: Tensor) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Return ways to notice a picture of none of the classes, by logits and features; low is familiar."""
    bank = normalize(rows.double(), dim=1)
    count = min(10, len(bank))
    means = torch.stack([rows[labels == k].double().mean(0) for k in range(int(labels.max()) + 1)])
    shared = {share: fit_distance(rows, labels, shrinkage=share) for share in (0.001, 0.1, 0.3, 0.6)}
    return {
        "maximum softmax": lambda logits, features: -logits.softmax(1).amax(1),
        "energy": lambda logits, features: -logits.logsumexp(1),
        "nearest neighbours": lambda logits, features: (
            1 - (normalize(features.double(), dim=1) @ bank.T).topk(count, dim=1).values[:, -1]
        ),
        "Mahalanobis": lambda logits, features: (
            torch.cdist(features.double() @ shared[0.3].within, means @ shared[0.3].within).amin(1)
        ),
        **{
            f"relative Mahalanobis, shrunk {share}": lambda logits, features, distance=distance: distance(features)
            for share, distance in shared.items()
        },
    }  # fmt: skip


def along_the_line(
    run: Path, measured: Callable[[Source], tuple[Tensor, Tensor]], test: Packed, model: torch.nn.Module
) -> dict[str, float]:
    """Return the test accuracy of weights between the closed form and the mean of the last ones, and of these."""
    first, kept = solved_head.softened(saved_weights(run / "closed_form")), dict(model.state_dict())
    folds = [RunFolder(path) for path in sorted((run / "folds").glob("fold-*"))] or [RunFolder(run)]
    states = [newest_state(fold.last_checkpoint) for fold in folds]
    lasts = [weights_of(state) for state in states if state is not None]
    mean = {name: torch.stack([last[name] for last in lasts]).mean(0) for name in first}
    tried = {f"{share:g}": between(first, mean, share) for share in (0, 0.25, 0.5, 0.75, 1)}
    tried["one"] = lasts[0]
    if len(lasts) == 1 and states[0] is not None:  # without averaging
        with safe_open(states[0], framework="pt") as opened:
            tried["raw"] = {name: opened.get_tensor(f"model.{name}") for name in first}
    labels, accuracies = torch.from_numpy(test.labels).long(), {}
    for name, weights in tried.items():
        model.load_state_dict(weights)
        accuracies[name] = share_right(measured(test)[0], labels)
    model.load_state_dict(kept)
    return accuracies


# --- many runs ------------------------------------------------------------------------------------------------------


def work(number: int, jobs: Any, results: Any, options: argparse.Namespace) -> None:
    """Take jobs until there are none; every process opens its own log."""
    register_source("packed", PackedKind)
    setattr(RunFolder, "remove_folds", lambda self: None)  # noqa: B010 (mypy); the folds are measured too
    # Pages and statistics are not measured.
    for module in (run_end, train_run, cross_validation, fold_training, fast_run):
        for name in ("report_run", "save_statistics"):
            if hasattr(module, name):
                setattr(module, name, lambda *args, **kwargs: None)
    if options.logits:
        setattr(run_end, "calibrated", keeping_logits(run_end.calibrated))  # noqa: B010 (mypy)
    # Processes that share a GPU delay each other's small launches: heads are solved on the CPU.
    setattr(solved_head, "LARGE", math.inf)  # noqa: B010 (mypy)
    torch.set_num_threads(1)
    log = (options.out / f"log-{number}.txt").open("a", buffering=1)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    while True:
        try:
            job = jobs.get(timeout=1)
        except queue.Empty:
            return
        if time.time() > options.until:
            results.put({**job, "skipped": True})
            continue
        try:
            results.put(run_arm(job, options))
        except Exception as error:  # one that fails must not cost the others
            traceback.print_exc()
            results.put({**job, "error": f"{type(error).__name__}: {error}"})


def keeping_logits(
    calibrated: Callable[[Outputs, Source], tuple[Outputs, CalibrationFit]],
) -> Callable[[Outputs, Source], tuple[Outputs, CalibrationFit]]:
    """Let the function that fits a run's temperature keep what it reads."""

    def keeping(outputs: Outputs, source: Source) -> tuple[Outputs, CalibrationFit]:
        HELD_OUT.update({"held_out": outputs.rows.numpy(), "held_out_labels": np.asarray(source.labels)})
        return calibrated(outputs, source)

    return keeping


def run(options: argparse.Namespace) -> None:
    """Run all jobs that have no line yet, and show the tables."""
    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.resolve()
    options.scratch = (options.scratch or options.out).resolve()
    options.scratch.mkdir(parents=True, exist_ok=True)
    options.until = time.time() + 60 * options.minutes
    began = time.monotonic()
    options.sets = unpack(options.packs, options.scratch, jobs=options.cores)
    print(f"unpacked after {time.monotonic() - began:.0f} s", flush=True)
    options.models = {
        Path(name).name: prepared(name, Path(file), options.scratch) if file else name
        for name, _, file in (one.partition("=") for one in options.models.split(","))
    }
    file = options.out / "results.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {key(line) for line in lines if "error" not in line}
    todo = [job for job in listed_jobs(options) if key(job) not in done]
    context = multiprocessing.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    for job in todo:
        jobs.put(job)
    workers = [
        context.Process(target=work, args=(number, jobs, results, options)) for number in range(options.jobs)
    ]
    for worker in workers:
        worker.start()
    for number in range(len(todo)):
        line = results.get()
        if "skipped" not in line:
            lines.append(line)
            with file.open("a") as opened:
                opened.write(json.dumps(line) + "\n")
        note = line.get("error") or (f"{100 * line['accuracy']:.1f} %" if "accuracy" in line else "")
        note = "skipped" if "skipped" in line else note
        print(
            f"{time.monotonic() - began:.0f} s, {number + 1} of {len(todo)}: {key(line)} {note}", flush=True
        )
    for worker in workers:
        worker.join()
    show(lines, options)


def key(line: Mapping[str, Any]) -> str:
    return f"{line['set']}-{line['model']}-{line['draw']}-{line['arm']}"


def listed_jobs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """List the jobs of the arms, main arms first, long ones before short ones."""
    jobs = []
    chosen = options.sets if options.only is None else options.only.split(",")
    for name in chosen:
        is_small = name == "pets"
        for arm in options.arms.split(","):
            if not options.all_draws and arm in (ONLY_LARGE if is_small else ONLY_SMALL):
                continue
            is_main = options.all_draws or arm in ("closed", "before", "new")
            draws = options.draws if is_main else 2 if "left-out" in arm else 1
            for model in sorted(options.models, reverse=True):
                jobs += [{"set": name, "model": model, "draw": draw, "arm": arm} for draw in range(draws)]
    return sorted(jobs, key=lambda job: (rank_of(job["arm"]), job["set"] != "pets", job["draw"]))


def rank_of(arm: str) -> int:
    """Return 0 for the arms of the main table and features, 1 for classes left out, 2 for variations."""
    return 0 if arm in MAIN else 1 if "left-out" in arm else 2


def prepared(name: str, file: Path, out: Path) -> str:
    """Write a model folder from one whose weights were halved to save space."""
    folder = out / f"model-{name}"
    if not folder.exists():
        loaded = vitrine.load(file)
        vitrine.save(loaded.model.float(), folder, preprocess=loaded.preprocess)
    return str(folder)


def show(lines: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> None:
    """Print the tables: accuracy and calibration per arm, coverage, unfamiliar pictures, variations."""
    good = [line for line in lines if "accuracy" in line]
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for line in sorted(good, key=key):
        groups.setdefault((line["set"], line["model"], line["arm"]), []).append(line)
    print(
        "\n| set | model | arm | draws | accuracy | ECE (its floor) | without temperature | seconds | steps |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for (name, model, arm), rows in groups.items():
        print(
            f"| {name} | {model} | {arm} | {len(rows)} | {spread_of(rows, 'accuracy')} | "
            f"{pooled_error(rows, options.out)} | {spread_of(rows, 'ece_before')} | "
            f"{np.mean([row['seconds'] for row in rows]):.0f} | {rows[0]['steps']} |"
        )
    print("\ncoverage minus the promise, in points; classes per set; known pictures marked; others")
    for (name, model, arm), rows in groups.items():
        cells = [
            f"{coverage:g}: {100 * (np.mean([row[f'coverage {coverage:g}'] for row in rows]) - coverage):+.1f} "
            f"({np.mean([row[f'size {coverage:g}'] for row in rows]):.2f})"
            for coverage in COVERAGES
            if all(f"coverage {coverage:g}" in row for row in rows)
        ]
        cells += [
            f"{label} {np.mean([row[label] for row in rows]):.3f}"
            for label in rows[0]
            if label == "flagged" or label.startswith(("auroc", "noticed"))
        ]
        print(f"{name} {model} {arm}: {'; '.join(cells)}")
        if "ways" in rows[0]:
            for way in rows[0]["ways"]:
                areas = [row["ways"][way] for row in rows]
                print(f"    {way}: {np.mean(areas):.3f} +- {np.std(areas):.3f}")
    print("\nposition of the saved weights, per draw; test accuracy from the closed form to the last weights")
    for (name, model, arm), rows in groups.items():
        saved = [
            next(
                (f"{place} {100 * score:.1f}" for place, score, is_saved in row["contenders"] if is_saved),
                "-",
            )
            for row in rows
        ]
        followed = {place: round(100 * score, 1) for place, score in rows[0].get("line", {}).items()}
        print(f"{name} {model} {arm}: {saved} {followed or ''}")


def spread_of(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [100 * row[name] for row in rows if row.get(name) is not None]
    return (
        f"{np.mean(values):.2f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.2f}" if values else "-"
    )


def pooled_error(rows: Sequence[Mapping[str, Any]], out: Path) -> str:
    """Return the calibration error over the pictures of all draws, and in brackets its floor.

    The floor is the mean over ten trials of what calibrated probabilities with these confidences show.
    """
    confidence, right = [], []
    for row in rows:
        name = "-".join(str(row[part]) for part in ("set", "model", "draw", "arm"))
        with np.load(out / f"{name}.npz") as stored:
            confidence.append(stored["confidence"].astype(np.float64))
            right.append(stored["right"])
    values, flags = np.concatenate(confidence), np.concatenate(right)
    place = np.minimum((values * BINS).astype(int), BINS - 1)

    def error(flags: np.ndarray) -> float:
        gaps = [abs(values[place == k].sum() - flags[place == k].sum()) for k in range(BINS)]
        return 100 * sum(gaps) / len(values)

    generator = np.random.default_rng(0)
    # The draws share their test pictures, so their random errors are the same.
    count = len(values) // len(rows)
    trials = [np.tile(generator.random(count), len(rows)) < values for _ in range(10)]
    return f"{error(flags):.2f} ({np.mean([error(trial) for trial in trials]):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("data", nargs="+", type=Path)
    packing.add_argument("--train", type=int, default=24, help="photos per class to draw from")
    packing.add_argument("--test", type=int, default=3500)
    running = verbs.add_parser("run")
    running.add_argument("packs", type=Path)
    running.add_argument("out", type=Path)
    running.add_argument("--models", default="box", help="names of models, or NAME=FILE")
    running.add_argument("--arms", default="features,before,new,left-out")
    running.add_argument("--shots", type=int, default=20)
    running.add_argument("--draws", type=int, default=3)
    running.add_argument("--all-draws", action="store_true", help="try variations on every set and draw")
    running.add_argument("--minutes", type=float, default=9.0, help="start no run after this time")
    running.add_argument("--workers", type=int, default=2, help="of each process")
    running.add_argument("--cores", type=int, default=16)
    running.add_argument("--size", type=int)
    running.add_argument("--device", default="auto")
    running.add_argument("--set", action="append", default=[])
    running.add_argument(
        "--scratch", type=Path, help="where pixels and runs lie until the end [default: OUT]"
    )
    running.add_argument("--only", help="names of the sets to learn [default: all]")
    running.add_argument("--logits", action="store_true", help="keep the logits of held-out and test photos")
    running.add_argument("--keep", action="store_true", help="keep the run folders")
    for verb, jobs in ((packing, 2), (running, 8)):
        verb.add_argument("--jobs", type=int, default=jobs)
    packing.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    (pack if options.verb == "pack" else run)(options)


if __name__ == "__main__":
    main()
