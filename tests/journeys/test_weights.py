"""The training of the bundled models, at toy size: from public repositories to packs, students and their card."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

import vitrine

ROOT = Path(__file__).parents[2]
WNIDS = ("n01440764", "n02085620", "n02123045")
NUM_PHOTOS = 6


def repository(folder: Path, files: dict[str, bytes]) -> Path:
    """Commit files to a new Git repository."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(folder))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "photographs")):
        subprocess.run([*git, *words], check=True)
    return folder


def jpeg(number: int, path: Path) -> bytes:
    """Draw some shapes: less alike for a trained model (cosine below 0.8) than noise is."""
    draw = np.random.default_rng(number)
    image = Image.new("RGB", (150, 120), tuple(map(int, draw.integers(0, 256, 3))))
    canvas = ImageDraw.Draw(image)
    for _ in range(1 + number % 5):
        (x, y), (width, height) = draw.integers(0, 100, 2), draw.integers(20, 90, 2)
        shape = canvas.ellipse if draw.random() < 0.5 else canvas.rectangle
        shape((x, y, x + width, y + height), fill=tuple(map(int, draw.integers(0, 256, 3))))
    image.save(path, "JPEG")
    return path.read_bytes()


@pytest.fixture(scope="module")
def mirrors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two repositories to train on, one of them with a copy of a test photograph, and two to measure on."""
    folder = tmp_path_factory.mktemp("mirrors")
    made = [jpeg(number, folder / "photo.jpg") for number in range(4 * NUM_PHOTOS)]
    nette = {f"train/{WNIDS[n % 3]}/{n}.JPEG": made[n] for n in range(NUM_PHOTOS)}
    nette |= {"train/n01440764/broken.JPEG": b"no photograph", "train/n01440764/again.JPEG": made[0]}
    repository(folder / "thunderInfy+imagenette", nette)
    clothing = {f"images/{n}.jpg": made[NUM_PHOTOS + n] for n in range(NUM_PHOTOS)}
    repository(folder / "alexeygrigorev+clothing-dataset", clothing)
    val = {f"ILSVRC2012_img_val_subset/{n}/v{n}.JPEG": made[2 * NUM_PHOTOS + n] for n in range(NUM_PHOTOS)}
    val["ILSVRC2012_img_val_subset/7/copy.JPEG"] = made[NUM_PHOTOS]
    repository(folder / "ndb796+Small-ImageNet-Validation-Dataset-1000-Classes", val)
    return folder


def run(script: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "weights" / script), *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def packs(mirrors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs")
    run("gather.py", mirrors, folder, "--only", "nette,clothing,imagenet-val,voc")
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with patches of 14 pixels: trained, so that it tells photographs apart."""
    loaded = vitrine.load("box", image_size={"size": 196, "patch": 14, "max_patches": None})
    folder = tmp_path_factory.mktemp("teacher") / "teacher"
    return vitrine.save(loaded.model, folder, preprocess=loaded.preprocess, classes=loaded.classes)


@pytest.mark.slow
def test_packs_hold_labels_of_imagenet_and_every_photograph_once(packs: Path) -> None:
    assert not list(packs.glob("voc-*"))  # there is no clone of it
    with np.load(packs / "nette-00.npz") as pack:
        assert len(pack["sizes"]) == NUM_PHOTOS
        assert sorted(pack["labels"].tolist()) == [0, 0, 151, 151, 281, 281]  # of the three WordNet ids
        assert pack["sizes"].sum() == len(pack["blob"])
    with np.load(packs / "clothing-00.npz") as pack:
        assert set(pack["labels"].tolist()) == {-1}


@pytest.mark.slow
def test_a_student_learns_from_its_teacher_and_never_from_a_copy_of_a_test_photograph(
    packs: Path, mirrors: Path, teacher: Path, tmp_path: Path
) -> None:
    tests = tmp_path / "tests.npz"
    run("copies.py", "describe", mirrors, "--teacher", teacher, "--out", tests, "--only", "imagenet-val")
    out = tmp_path / "out"
    run(
        "distil.py", packs, "--teacher", teacher, "--tests", tests, "--out", out, "--students", "ti=teacher",
        "--minutes", 0.02, "--batch", 8, "--stages", "2:0.5,3:1", "--device", "cpu", "--masked", 0.3, "--local", 1,
        "--projector", 2, "--teacher-scale", 1.5,
    )  # fmt: skip
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    copies = {event["set"]: event["left_out"] for event in events if event["event"] == "copies"}
    assert 1 <= copies["clothing"] < NUM_PHOTOS  # the photograph that is also a test photograph
    assert not any(event.get("set") == "imagenet-val" for event in events if event["event"] == "copies")
    before, after = (
        next(event for event in events if event["event"] == kind) for kind in ("start", "average")
    )
    assert before["set"] == after["set"] == "imagenet-val"
    assert vitrine.load(out / "ti").model.config.num_classes == 1000
