"""Compare an exported page with Python on fifty unusual photos, and time its first answer, in a real browser.

    python benchmarks/offline_page.py MODEL [--int8] [--photos PHOTOS] [--pictures OUT]

Exports MODEL. Prints for each photo the largest and the mean difference of its pixels (levels of 255) and of its
logits, then how long the page takes to open and to answer for the first and the following photos: seconds, and
processor seconds of the browser, which other load changes less. `--pictures` writes screenshots: light, dark, phone.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
SCREENS = {"light": (1280, 900), "dark": (1280, 900), "phone": (390, 844)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--photos", type=Path, help="photos to time the page with [default: an unusual one]")
    parser.add_argument("--count", type=int, default=50, help="unusual photos to compare")
    parser.add_argument("--answers", type=int, default=8, help="photos to time")
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    import vitrine

    with tempfile.TemporaryDirectory() as folder:
        vitrine.export(options.model, to="web", out=folder, int8=options.int8, speed=False)
        show(Path(folder), options)


def show(folder: Path, options: argparse.Namespace) -> None:
    from browsers import open_browser
    from offline_page import static_host

    with static_host(folder) as address, open_browser() as browser:
        compare(browser, address, options)
        measure(browser, address, options)
        if options.pictures:
            options.pictures.mkdir(parents=True, exist_ok=True)
            for name in SCREENS:
                take_picture(browser, address, photos_of(options)[0], name, options.pictures)


def compare(browser: Any, address: str, options: argparse.Namespace) -> None:
    from odd_photos import odd_photos
    from offline_page import compute

    from vitrine.serving.predictor import Predictor

    predictor, page = Predictor.open(options.model, device="cpu"), browser.new_page()
    page.goto(address)
    rows = []
    for name, data in list(odd_photos().items())[: options.count]:
        answer, pixels = compute(page, data), predictor.pixels(data)
        logits = predictor.batch(pixels[None])[0].numpy()
        apart = np.abs(pixels.permute(1, 2, 0).flatten().numpy().astype(int) - np.array(answer["pixels"]))
        far = np.abs(logits - np.array(answer["logits"])).max()
        same = int(logits.argmax() == np.argmax(answer["logits"]))
        rows.append((apart.max(), apart.mean(), far, same))
        print(f"{name}: pixels {apart.max()} at most, {apart.mean():.3f} on average; logits {far:.4f}")
    most, mean, far, same = (np.array(column) for column in zip(*rows, strict=True))
    print(
        f"{len(rows)} photos: pixels equal in {int((most == 0).sum())}, else {most.max()} levels at most and "
        f"{mean.max():.3f} on average; logits {np.median(far):.1e} in the median, {far.max():.4f} at most; "
        f"top-1 the same for {int(same.sum())}"
    )
    page.close()


def measure(browser: Any, address: str, options: argparse.Namespace) -> None:
    from browsers import until

    page = browser.new_page()
    with Spent() as opening:
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        until(page, "document.body.dataset.engine", seconds=120)
    print(f"open and load, {page.evaluate('document.body.dataset.engine')}: {opening}")
    times = []
    for number, photo in enumerate(photos_of(options)[: options.answers]):
        with Spent() as answering:
            give(page, photo, button="#hero [data-choose]" if number == 0 else "#case [data-choose]")
        if number == 0:
            print(f"first answer after load: {answering}")
        else:
            times.append(answering.processor)
    if times:
        print(
            f"further answers: {statistics.median(times):.2f} s of processor time, the median of {len(times)}"
        )
    page.close()


def photos_of(options: argparse.Namespace) -> list[bytes]:
    from odd_photos import odd_photos

    if options.photos is None:
        return [odd_photos()["jpeg, quality 100"]] * options.answers
    return [path.read_bytes() for path in sorted(options.photos.rglob("*.jp*g"))[:: options.answers]]


def give(page: Any, photo: bytes, *, button: str) -> None:
    """Choose a photo and wait for its classes."""
    page.evaluate("document.querySelector('.bars').replaceChildren()")
    with page.expect_file_chooser() as chooser:
        page.locator(button).first.click()
    chooser.value.set_files([{"name": "a.jpg", "mimeType": "image/jpeg", "buffer": photo}])
    page.wait_for_selector(".bars .value", timeout=120_000)


def take_picture(browser: Any, address: str, photo: bytes, name: str, folder: Path) -> None:
    width, height = SCREENS[name]
    scheme = "dark" if name == "dark" else "light"
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    give(page, photo, button="#hero [data-choose]")
    page.wait_for_selector(".atlas-box:not([hidden])")
    page.wait_for_timeout(600)  # the bars grow
    page.screenshot(path=folder / f"{name}.png", full_page=name == "phone")
    page.close()


class Spent:
    """Seconds of a block, and processor seconds of the processes that this one started."""

    def __enter__(self) -> "Spent":
        self.begin, self.before = time.perf_counter(), processor_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.begin
        self.processor = processor_seconds() - self.before

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, {self.processor:.2f} s of processor time"


def processor_seconds() -> float:
    """Add up the processor time of all descendants of this process."""
    parents, spent = {}, {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(status.parent.name)
        parents[pid], spent[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
    processes, new = set(), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - processes
        processes |= new
    return sum(spent[pid] for pid in processes)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    main()
