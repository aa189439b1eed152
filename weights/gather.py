"""Gather public photographs into packs that travel to the GPU: WebP in parts of at most 40 MB.

    python weights/gather.py MIRRORS PACKS [--only voc,dogs] [--most 2000]

MIRRORS holds bare clones named OWNER+NAME, as `git clone --bare` makes them, for the sources in `sources.py`.
Writes PACKS/NAME-00.npz and so on; packs that are there are not made again. Photographs are cropped to at most 4:3
and resized to a square, which crops of any shape undo: that takes fewer bytes than both alone. Equal photographs are
kept once.
"""

import argparse
import hashlib
import io
import multiprocessing
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from sources import PHOTOGRAPH, SOURCES, Source, class_numbers, label_of

MOST_BYTES = 40_000_000
WIDEST = 4 / 3
PETS_LIST = "annotations/list.txt"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("packs", type=Path)
    parser.add_argument("--only", help="names of sources, with commas between them")
    parser.add_argument(
        "--most", type=int, help="photographs per source, spread over all of them; for a trial"
    )
    options = parser.parse_args()
    options.packs.mkdir(parents=True, exist_ok=True)
    for name in options.only.split(",") if options.only else SOURCES:
        mirror = mirror_of(options.mirrors, SOURCES[name].repository)
        if mirror is None:
            print(f"{name}: no clone of {SOURCES[name].repository} in {options.mirrors}, skipped")
        elif list(options.packs.glob(f"{name}-[0-9]*.npz")):
            print(f"{name}: is there already")
        else:
            gather(mirror, name, SOURCES[name], options.packs, most=options.most)


def mirror_of(mirrors: Path, repository: str) -> Path | None:
    """Return the Git directory of a clone."""
    folder = mirrors / repository.replace("/", "+")
    for place in (folder, folder / ".git", folder / "repo", folder / "repo/.git"):
        if (place / "HEAD").is_file():
            return place
    return None


def paths_in(mirror: Path, within: str) -> list[tuple[str, str]]:
    """Return path and object of all photographs whose path matches, in the order of their paths."""
    listing = git(mirror, "ls-tree", "-r", "-z", "HEAD").decode("utf-8", "replace")
    rows = (entry.partition("\t") for entry in listing.split("\0") if entry)
    return [
        (path, facts.split()[2])
        for facts, _, path in rows
        if PHOTOGRAPH.search(path) and re.search(within, path)
    ]


def contents(mirror: Path, objects: Iterable[str]) -> Iterator[bytes | None]:
    """Yield the bytes of objects, None for one that the clone lacks."""
    # One process reads all of them; asking for one at a time keeps its pipe from filling.
    with subprocess.Popen(
        ["git", f"--git-dir={mirror}", "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for name in objects:
            process.stdin.write(f"{name}\n".encode())
            process.stdin.flush()
            facts = process.stdout.readline().split()
            if facts[-1] == b"missing":
                yield None
                continue
            yield process.stdout.read(int(facts[2]))
            process.stdout.read(1)
        process.stdin.close()


def git(mirror: Path, *words: str) -> bytes:
    return subprocess.run(["git", f"--git-dir={mirror}", *words], check=True, capture_output=True).stdout


def gather(mirror: Path, name: str, source: Source, packs: Path, *, most: int | None) -> None:
    """Write the packs of one source; count what cannot be read."""
    rows = spread(paths_in(mirror, source.within), most)
    label = labels_of(mirror, name)
    jobs = (
        (data, label(path), source.side, source.quality)
        for (path, _), data in zip(rows, contents(mirror, (one for _, one in rows)), strict=True)
    )
    parts = Parts(packs, name, source.side)
    with multiprocessing.Pool() as pool:
        for blob, number in pool.imap(packed, jobs, chunksize=32):
            parts.add(blob, number)
    parts.close()
    print(
        f"{name}: {parts.total:,} photographs, {parts.bad:,} unreadable or missing, {parts.twice:,} twice, "
        f"{parts.num_bytes / 1e6:.1f} MB in {parts.number} parts; {source.licence}",
        flush=True,
    )


def spread(rows: list[tuple[str, str]], most: int | None) -> list[tuple[str, str]]:
    """Return at most so many rows, at equal distances."""
    if most is None or most >= len(rows):
        return rows
    return [rows[index] for index in np.linspace(0, len(rows) - 1, most).astype(int)]


class LabelOf:
    """The label of each path of a source."""

    def __init__(self, name: str, breeds: dict[str, int]) -> None:
        self.name, self.breeds, self.numbers = name, breeds, class_numbers()

    def __call__(self, path: str) -> int:
        """Return it, or -1."""
        return self.breeds.get(Path(path).stem, label_of(path, self.name, self.numbers))


def labels_of(mirror: Path, name: str) -> LabelOf:
    """Return the labels of a source; those of Pets stand in a file of their own."""
    breeds = {}
    if name == "pets-all":
        for line in git(mirror, "show", f"HEAD:{PETS_LIST}").decode().splitlines():
            if not line.startswith("#"):
                stem, number = line.split()[:2]
                breeds[stem] = int(number) - 1
    return LabelOf(name, breeds)


class Parts:
    """Files of at most 40 MB that are filled one after the other."""

    def __init__(self, packs: Path, name: str, side: int) -> None:
        self.packs, self.name, self.side = packs, name, side
        self.number = self.total = self.bad = self.twice = self.num_bytes = 0
        self.blobs: list[bytes] = []
        self.labels: list[int] = []
        self.held, self.seen = 0, set[bytes]()

    def add(self, blob: bytes | None, label: int) -> None:
        """Add an image, or count one that is unreadable or there already."""
        if blob is None:
            self.bad += 1
            return
        digest = hashlib.blake2b(blob, digest_size=8).digest()
        if digest in self.seen:
            self.twice += 1
            return
        self.seen.add(digest)
        if self.held + len(blob) > MOST_BYTES:
            self.close()
        self.blobs.append(blob)
        self.labels.append(label)
        self.held += len(blob)
        self.total += 1

    def close(self) -> None:
        """Write the part that is being filled."""
        if self.blobs:
            np.savez(
                self.packs / f"{self.name}-{self.number:02d}.npz",
                blob=np.frombuffer(b"".join(self.blobs), np.uint8),
                sizes=np.array([len(blob) for blob in self.blobs], np.int32),
                labels=np.array(self.labels, np.int16),
                side=self.side,
            )
            self.number, self.num_bytes = self.number + 1, self.num_bytes + self.held
        self.blobs, self.labels, self.held = [], [], 0


def packed(job: tuple[bytes | None, int, int, int]) -> tuple[bytes | None, int]:
    """Return an image as a square WebP, None if it cannot be read."""
    data, label, side, quality = job
    if data is None:
        return None, label
    try:
        square = squared(data, side)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None, label
    buffer = io.BytesIO()
    square.save(buffer, "WEBP", quality=quality, method=3)
    return buffer.getvalue(), label


def squared(data: bytes, side: int) -> Image.Image:
    """Decode an image, crop it to at most 4:3, and resize it to a square."""
    with Image.open(io.BytesIO(data)) as opened:
        if opened.format == "JPEG":
            opened.draft("RGB", (side, side))
        image = ImageOps.exif_transpose(opened).convert("RGB")
    width, height = image.size
    width, height = min(width, int(height * WIDEST)), min(height, int(width * WIDEST))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    frame = (left, top, left + width, top + height)
    return image.resize((side, side), Image.Resampling.BICUBIC, box=frame, reducing_gap=3.0)


if __name__ == "__main__":
    main()
