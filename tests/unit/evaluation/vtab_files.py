"""Files laid out as the original archives of VTAB's tasks are, with contents whose labels are known."""

import csv
import json
import struct
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat


def picture(path: Path, colour=(128, 128, 128), size=(8, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def make_lists(folder: Path, num_classes: int, counts=None):
    counts = counts or {"train800": 8, "val200": 4, "test": 6}
    lines = {}
    for name, count in counts.items():
        lines[name] = []
        for number in range(count):
            split = {"train800": "train", "val200": "val", "test": "test"}[name]
            path = f"images/{split}/{number:06d}.jpg"
            picture(folder / path)
            lines[name].append(f"{path} {number % num_classes}")
    lines["train800val200"] = lines["train800"] + lines["val200"]
    for name, rows in lines.items():
        (folder / f"{name}.txt").write_text("\n".join(rows) + "\n")


def make_clevr(folder: Path, scenes: dict[str, list[list[float]]]):
    """`scenes`: for train and val, the depths of the objects of each scene."""
    for part, depths in scenes.items():
        records = []
        for number, row in enumerate(depths):
            name = f"CLEVR_{part}_{number:06d}.png"
            picture(folder / "images" / part / name)
            objects = [{"pixel_coords": [10, 20, depth], "shape": "cube", "size": "large"} for depth in row]
            records.append({"image_index": number, "image_filename": name, "objects": objects, "split": part})
        (folder / "scenes").mkdir(exist_ok=True)
        text = json.dumps({"info": {"split": part, "license": "x"}, "scenes": records})
        (folder / "scenes" / f"CLEVR_{part}_scenes.json").write_text(text)


def make_dsprites(folder: Path, *, suffix: str, count=64):
    """Every orientation and place in turn; picture i has its first i + 1 pixels white."""
    folder.mkdir(parents=True, exist_ok=True)
    images = (np.arange(64 * 64)[None] <= np.arange(count)[:, None]).astype(np.uint8).reshape(count, 64, 64)
    classes = np.zeros((count, 6), dtype=np.int64)
    classes[:, 3] = np.arange(count) % 40
    classes[:, 4] = np.arange(count) % 32
    name = folder / f"dsprites_ndarray_co1sh3sc6or40x32y32_64x64.{suffix}"
    if suffix == "npz":
        np.savez_compressed(
            name,
            imgs=images,
            latents_classes=classes,
            metadata=np.array({"pickled": "never read"}, dtype=object),
        )
    else:
        import h5py

        with h5py.File(name, "w") as file:
            file["imgs"] = images
            file["latents/classes"] = classes
    return classes, images


def make_kitti(folder: Path, scenes: list[list[tuple[str, float]]]):
    """`scenes`: kind and distance of the objects of each picture."""
    for number, objects in enumerate(scenes):
        picture(folder / "training" / "image_2" / f"{number:06d}.png")
        lines = [f"{kind} 0.00 0 -1.57 1 2 3 4 1.5 1.6 3.7 -2.0 1.7 {z} 0.01" for kind, z in objects]
        file = folder / "training" / "label_2" / f"{number:06d}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(lines) + "\n")


def write_norb_matrix(file: Path, array: np.ndarray):
    magic = 0x1E3D4C55 if array.dtype == np.uint8 else 0x1E3D4C54
    sides = [*array.shape, *[1] * (3 - array.ndim)]
    header = struct.pack("<II", magic, array.ndim) + struct.pack(f"<{len(sides)}I", *sides)
    file.write_bytes(header + array.tobytes())


def make_smallnorb(folder: Path, count=36):
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for part, instances in {"training": "46789", "testing": "01235"}.items():
        name = f"smallnorb-5x{instances}x9x18x6x2x96x96-{part}"
        images = np.zeros((count, 2, 96, 96), dtype=np.uint8)
        images[:, 0], images[:, 1] = np.arange(count)[:, None, None], 255  # left and right of each pair
        info = np.zeros((count, 4), dtype="<i4")
        info[:, 1], info[:, 2] = np.arange(count) % 9, 2 * (np.arange(count) % 18)
        write_norb_matrix(folder / f"{name}-dat.mat", images)
        write_norb_matrix(folder / f"{name}-info.mat", info)
        write_norb_matrix(folder / f"{name}-cat.mat", (np.arange(count) % 5).astype("<i4"))
        found[part] = info
    return found


def _field(number: int, data: bytes) -> bytes:
    return _number(number << 3 | 2) + _number(len(data)) + data


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def tf_record(image: bytes, label: int, *, is_packed: bool) -> bytes:
    """A tf.train.Example with image, filename and label, framed as in a TFRecord file."""
    numbers = _field(1, _number(label)) if is_packed else _number(1 << 3) + _number(label)
    features = {
        b"filename": _field(1, _field(1, b"frame.jpg")),
        b"image": _field(1, _field(1, image)),
        b"label": _field(3, numbers),
    }
    entries = b"".join(_field(1, _field(1, key) + _field(2, value)) for key, value in features.items())
    data = _field(1, entries)
    return struct.pack("<Q", len(data)) + b"\0\0\0\0" + data + b"\0\0\0\0"


def make_dmlab(folder: Path, count=6):
    import io

    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    Image.new("RGB", (48, 36), (10, 200, 30)).save(buffer, "JPEG")
    for part in ("train", "validation", "test"):
        for shard in range(2):
            records = [
                tf_record(buffer.getvalue(), (number + shard) % 6, is_packed=bool(shard))
                for number in range(count)
            ]
            (folder / f"dmlab-{part}.tfrecord-{shard:05d}-of-00002").write_bytes(b"".join(records))
    return buffer.getvalue()


def make_retinopathy(folder: Path, count=10):
    for part, file in {"train": "trainLabels.csv", "test": "retinopathy_solution.csv"}.items():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / file).open("w", newline="") as opened:
            writer = csv.writer(opened)
            writer.writerow(["image", "level"] + (["Usage"] if part == "test" else []))
            for number in range(count):
                name = f"{number}_left"
                picture(folder / part / f"{name}.jpeg")
                usage = ["Public" if number < 4 else "Private"] if part == "test" else []
                writer.writerow([name, number % 5, *usage])


def make_svhn(folder: Path, count=20):
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
    digits = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]  # 1 to 10, where 10 is a zero
    for part in ("train", "test"):
        savemat(folder / f"{part}_32x32.mat", {"X": images, "y": digits}, do_compression=True)
    return images, digits


def make_camelyon(folder: Path, count=10):
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (count, 96, 96, 3), dtype=np.uint8)
    for part in ("train", "valid", "test"):
        with h5py.File(folder / f"camelyonpatch_level_2_split_{part}_x.h5", "w") as file:
            file["x"] = images
        with h5py.File(folder / f"camelyonpatch_level_2_split_{part}_y.h5", "w") as file:
            file["y"] = (np.arange(count) % 2).astype(np.uint8).reshape(count, 1, 1, 1)
    return images


def make_class_folders(folder: Path, num_classes: int, each: int):
    for number in range(num_classes):
        for image in range(each):
            picture(folder / f"class_{number:03d}" / f"{image}.png")


def make_cifar100(folder: Path, count=300):
    """The binary version: a coarse label, a fine label, 3,072 bytes of planes a record."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fine_label_names.txt").write_text("\n".join(f"fine_{k:02d}" for k in range(100)) + "\n")
    (folder / "coarse_label_names.txt").write_text("\n".join(f"coarse_{k}" for k in range(20)) + "\n")
    for part in ("train", "test"):
        records = np.zeros((count, 3074), dtype=np.uint8)
        records[:, 0], records[:, 1] = np.arange(count) % 20, np.arange(count) % 100
        (folder / f"{part}.bin").write_bytes(records.tobytes())


def make_pets(folder: Path, each=4):
    """`images/Breed_1.jpg` and the two lists; numbers in the lists count breeds from 1."""
    (folder / "annotations").mkdir(parents=True)
    for name in ("trainval", "test"):
        lines = []
        for breed in range(37):
            for number in range(each):
                stem = f"Breed_{breed:02d}_{number + (0 if name == 'test' else each)}"
                picture(folder / "images" / f"{stem}.jpg")
                lines.append(f"{stem} {breed + 1} 1 1")
        (folder / "annotations" / f"{name}.txt").write_text("\n".join(lines) + "\n")
