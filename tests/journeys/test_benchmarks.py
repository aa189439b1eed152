"""Every file of benchmarks/ runs once on the CPU at toy size, so that no published figure loses its command.

Each benchmark has toy sizes on its own command line; nothing is patched. They run in this process, as `python FILE`
would run them, because importing torch takes longer than most of them at this size.
"""

import io
import runpy
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from box_scenes import voc_boxes
from boxes import untrained_box
from instance_scenes import voc_objects
from offline_page import require_onnxruntime_web
from pictures import class_folders, photo, save
from PIL import Image

import vitrine
from vitrine.checkpoints.libraries import import_installed

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
CHROMIUM = Path("/usr/bin/chromium")
SIZE, SIDE = 32, 40
# File, and the words after it; {names} are places of the `desk` below. `make test` runs every file once.
TOY_RUNS = [
    ("answers.py", "{folders} --models {model} --shots 3 --draws 1 --tail 2 --grow 0.5 --finetune --steps 2 "
     "--workers 0"),
    ("answers_table.py", "pack {folders} --out {out}/packs --jobs 1"),
    ("batch.py", "rate --count 12 --side 40 --model ViT-Ti/16 --size 32 --rounds 1 --compare 4 --device cpu"),
    ("box_transfer.py", "{pets} --arms box,features --shots 4 --epochs 1 --batch-size 4 --size 32 --test 4"),
    ("checkpoints.py", "load --model ViT-Ti/16 --repeat 1"),
    ("cpu.py", "train --depth 1 --batch-size 1 --rounds 1"),
    ("data.py", "--images {pets}/images --count 12 --size 32 --batch 4 --rounds 1 --workers 0,1"),
    ("dedup.py", "{pets}/images {photos} --synthetic 200 20 --sheets {out}"),
    ("deploy.py", "{demo}/run --calibrate {data} --data {data} --rounds 1 --batches 1 --targets onnx"),
    ("dense_packing.py", "{boxes} {out}/packed --side 40 --val 1 --megabytes 0.002"),
    ("dense_packing.py", "{objects} {out}/packed --task masks --side 40 --model {demo}/run/model --megabytes 4"),
    ("dinov2_onnx.py", "{dinov2} {photos} --count 1"),
    ("fewshot.py", "--classes 4 --shots 2 --width 8 --test-rows 40"),
    ("fewshot_real.py", "{model} {data} --sizes 32 --shots 1 --seeds 1 --batch-size 8 --workers 0 --out {out}/a"),
    ("frozen_features.py", "{model} {pets} {out}/pets.npz --train 2 --test 2"),
    ("frozen_features.py", "{model} textures {out}/textures.npz --test 2"),
    ("floor.py", "--out {out}/floor --list"),
    ("growth.py", "--rounds 1 --sizes 2 --only images,tokens,width,depth,training-images,order,few-shot-tests"),
    ("inference.py", "--device cpu --model ViT-Ti/16 --size 32 --batches 1 --no-compile --rounds 1 --repeats 1"),
    ("inspection.py", "attention {model} --pets {pets} --count 2 --size 32"),
    ("loss_curves.py", "{cifar} --device cpu --no-compile --model ViT-Ti/16 --steps 2 --seeds 2 --batch-size 2 "
     "--precisions fp32,bf16 --smoothed 1"),
    ("masked.py", "--model ViT-Ti/16 --size 32 --batch-size 1 --rounds 1"),
    ("native_aspect.py", "{pets} --model {model} --size 32 --max-patches 9 --train 1 --test 1 --device cpu"),
    ("none_of_these.py", "{features} --others far={far} --leave-out 1 --draws 2 --out {out}/areas.json"),
    ("packing.py", "--model ViT-Ti/16 --budgets 9,16 --batches 2 --rounds 1 --seconds 0.01 --device cpu"),
    ("pictures.py", "{demo} {out}"),
    ("records.py", "estimate"),
    ("run_curves.py", "{demo}/run --out {out}/curves.svg"),
    ("self_supervision.py", "--data {cifar} --out {out} --device cpu --tiny --seeds 1 --jobs 0 --pretrain-epochs 1 "
     "--tune-epochs 1 --methods scratch;dino"),
    ("search.py", "index --count 3000 --width 8 --queries 4"),
    ("serve.py", "latency {model} --count 10"),
    ("partial_training.py", "{folders} --model {model} --arms lora-16 --steps 2 --size 32 --device cpu --workers 0 "
     "--steps-of ViT-Ti/16 --batch-size 1 --out {out}/partial.jsonl"),
    ("short_run.py", "{folders} --model {model} --steps 2 --batch-size 2 --workers 0 --set training.graphs=true"),
    ("small_sets.py", "{folders} --classes 2 --shots 3 --steps 0,2 --draws 1 --test 2 --model {model} --device cpu "
     "--workers 0 --out {out}/small.jsonl"),
    ("closed_form.py", "{features} --shots 2,5 --draws 1"),
    ("temperatures.py", "{features} --shots 2 --held-out 6 --draws 1 --trials 1"),
    ("temperatures.py", "{logits} {logits}"),
    ("trust.py", "coverage {features} --draws 2"),
    ("trust.py", "labels {features} --draws 2"),
    ("trust.py", "suggest {features} --count 4 --rounds 1 --draws 2"),
    ("train_step.py", "--device cpu --model ViT-Ti/16 --size 32 --batch-size 2 --ours plain --no-compile --rounds 1 "
     "--repeats 1"),
]  # fmt: skip
TINY_RECORD = (
    "--steps 4 --device cpu --set training.batch_size=8 --set model_options.width=32 --set model_options.depth=1 "
    "--set model_options.mlp_width=32 --set training.compile=false"
)
# Other modes of the same files, for `make slow`.
SLOW_RUNS = [
    ("offline_page.py", "{model} --count 2 --answers 1"),
    (
        "answers_table.py",
        "run {packs} {out}/answers --models {model} --shots 4 --draws 1 --workers 1 --jobs 1 --cores 1 "
        "--set training.batch_size=4 --set epochs=1 --set fewest_steps=2 --arms closed,before,new,lora-4 --logits",
    ),
    (
        "descendants.py",
        "speed {cifar} --scales tiny --steps 3 --at-once 1 --ways launched,recorded --device cpu --methods 2",
    ),
    ("checkpoints.py", "convert --model ViT-Ti/16 --to vitrine"),
    ("cpu.py", "infer --depth 1 --batches 1 --rounds 1 --eager"),
    ("cpu.py", "start --rounds 1"),
    ("floor.py", "--out {out}/floor --toy --no-warm-up --cases b16,inference,mae,files"),
    ("records.py", "run 94 {cifar} --out {out}/94 --seeds 2 --commit 0000000 " + TINY_RECORD),
    ("records.py", "search {cifar} {candidates} --out {out}/search --no-warm-up " + TINY_RECORD),
    ("serve.py", "load {model} {photos} --seconds 0.5 --clients 2 --round-seconds 0.5 --rounds 1 --growth 9"),
    ("serve.py", "mutate {model} {photos} --count 20"),
]


def test_every_benchmark_has_a_toy_run() -> None:
    assert {name for name, _ in [*TOY_RUNS, *SLOW_RUNS]} == {path.name for path in FOLDER.glob("*.py")}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Make the data that benchmarks ask for, a few small images each."""
    root = tmp_path_factory.mktemp("desk")
    model = untrained_box(root / "model", image_size=SIZE, num_classes=2)
    photos = root / "photos"
    for number in range(4):
        save(photos / f"{number}.jpg", photo(number, 48, 40))
    data = "generated:shapes?size=32&count=24&val=12&test=8&label=texture"
    demo = root / "demo"
    vitrine.finetune(data, model=str(model), out=demo / "run", epochs=1, device="cpu", workers=0)
    vitrine.check(str(photos), out=demo / "check")
    save(demo / "inspect" / "rollout.png", photo(9, 60, 90))  # a figure that is only made smaller
    yield {
        "pets": small_pets(root / "pets"), "photos": photos, "model": model, "cifar": small_cifar(root / "cifar"),
        "dinov2": small_dinov2(root / "dinov2.onnx"), "data": Path(data), "demo": demo,
        "folders": split_folders(root / "folders"), "packs": small_packs(root / "packs"),
        "candidates": two_candidates(root / "candidates.txt"), "boxes": voc_boxes(root / "boxes"),
        "objects": voc_objects(root / "objects", train=2, val=1),
        "features": small_features(root / "features.npz"), "far": small_features(root / "far.npz", shift=9.0),
        "logits": small_logits(root / "logits.npz"),
    }  # fmt: skip


def two_candidates(path: Path) -> Path:
    """The first and the third candidate of the search for a record, and its comment."""
    lines = (FOLDER / "parts" / "record_candidates.txt").read_text().splitlines()
    path.write_text("\n".join([*lines[:3], lines[4]]))
    return path


def small_packs(folder: Path) -> Path:
    """Six training photos and three test photos of each of three classes, as `answers_table.py pack` writes them."""
    folder.mkdir()
    photos = []
    for number in range(27):
        written = io.BytesIO()
        Image.fromarray(photo(number, SIDE, SIDE)).save(written, "WEBP")
        photos.append(written.getvalue())
    np.savez(
        folder / "set.npz", bytes=np.frombuffer(b"".join(photos), np.uint8), sizes=np.array(list(map(len, photos))),
        labels=np.arange(27) % 3, split=np.arange(27) // 18, classes=np.array(["a", "b", "c"]),
        names=np.array([f"{number}.jpg" for number in range(27)]),
    )  # fmt: skip
    return folder


def split_folders(folder: Path) -> Path:
    """Two classes in folders, divided into training and test images."""
    for split, count in (("train", 6), ("test", 3)):
        class_folders(folder / split, classes=("cat", "dog"), each=count)
    return folder


def small_pets(folder: Path) -> Path:
    """Two breeds in the layout of Oxford-IIIT Pets, with trimaps."""
    names = [f"{breed}_{number}" for number in range(8) for breed in ("Abyssinian", "beagle")]
    for number, name in enumerate(names):
        save(folder / "images" / f"{name}.jpg", photo(100 + number, 60, 50))
        marks = np.full((50, 60), 2, dtype=np.uint8)
        marks[10:30, 10:40] = 1
        marks[30:34, 10:40] = 3
        (folder / "annotations" / "trimaps").mkdir(parents=True, exist_ok=True)
        Image.fromarray(marks).save(folder / "annotations" / "trimaps" / f"{name}.png")
    for listing, part in (("trainval.txt", names[:12]), ("test.txt", names[12:])):
        lines = "".join(f"{name} {1 + index % 2} 1 1\n" for index, name in enumerate(part))
        (folder / "annotations" / listing).write_text(lines)
    return folder


def small_features(file: Path, *, shift: float = 0.0) -> Path:
    """Features of three classes, as benchmarks/frozen_features.py writes them."""
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 3
    rows = 2 * np.eye(3, 5)[labels] + generator.normal(0, 1, (120, 5)) + shift
    np.savez(file, features=rows.astype(np.float32), labels=labels, split=np.arange(120) // 60)
    return file


def small_logits(file: Path) -> Path:
    """Logits of held-out and test pictures of three classes, as `answers_table.py --logits` writes them."""
    generator = np.random.default_rng(0)
    held_out, test = np.arange(30) % 3, np.arange(60) % 3
    logits = [2 * np.eye(3)[labels] + generator.normal(0, 1, (len(labels), 3)) for labels in (held_out, test)]
    np.savez(file, held_out=logits[0], held_out_labels=held_out, test=logits[1], test_labels=test)
    return file


def small_cifar(folder: Path) -> Path:
    """CIFAR-10's binary layout: per image one byte of label, then 32 x 32 red, green and blue bytes."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]:
        rows = rng.integers(0, 256, (20, 1 + 3 * 32 * 32), dtype=np.uint8)
        rows[:, 0] = np.arange(20) % 10
        (folder / name).write_bytes(rows.tobytes())
    labels = "airplane automobile bird cat deer dog frog horse ship truck"
    (folder / "batches.meta.txt").write_text("\n".join(labels.split()) + "\n")
    return folder


def small_dinov2(path: Path) -> Path:
    """Export a small DINOv2 from timm with the exporter and the names of the published graphs."""
    import onnx

    model = import_installed("timm").create_model(
        "vit_small_patch14_dinov2", img_size=224, embed_dim=64, depth=1, num_heads=1
    )
    for parameter in model.parameters():  # equal tensors would be stored once
        torch.nn.init.normal_(parameter, std=0.1)
    inputs = (torch.zeros(1, 3, 224, 224),)
    torch.onnx.export(model.eval(), inputs, path, dynamo=False, opset_version=16, input_names=["input"])
    graph = onnx.load(path)
    for node in graph.graph.node:  # the published model keeps its blocks in a list, timm in a module
        node.name = node.name.replace("/blocks/blocks.", "/blocks.")
    onnx.save(graph, path)
    return path


@pytest.fixture
def settings_of_torch() -> Iterator[None]:
    """Put back what benchmarks set for their whole process."""
    threads, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    yield
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


@pytest.mark.usefixtures("settings_of_torch")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "toy",
    [*TOY_RUNS, *(pytest.param(toy, marks=pytest.mark.slow) for toy in SLOW_RUNS)],
    ids=[f"{name} {words[:12]}" for name, words in [*TOY_RUNS, *SLOW_RUNS]],
)
def test_the_benchmark_runs_at_toy_size(
    toy: tuple[str, str],
    desk: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name, words = toy
    if name in ("pictures.py", "offline_page.py") and not CHROMIUM.exists():
        pytest.skip("no chromium to photograph pages with")
    if name == "offline_page.py":
        require_onnxruntime_web()
    arguments = words.format(**desk, out=tmp_path / "out").split()
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", [str(FOLDER / name), *arguments])
    try:
        if (
            name == "serve.py"
        ):  # other tests' browser keeps an event loop in this thread; this one needs its own
            with ThreadPoolExecutor(1) as thread:
                thread.submit(runpy.run_path, str(FOLDER / name), run_name="__main__").result()
        else:
            runpy.run_path(str(FOLDER / name), run_name="__main__")
    except SystemExit as end:
        assert not end.code, end.code
    assert capfd.readouterr().out.strip(), "a benchmark prints what it measured"
