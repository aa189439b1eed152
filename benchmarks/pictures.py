"""Take the screenshots of the README from the output of the commands.

    vitrine demo --out vitrine-demo
    python benchmarks/pictures.py vitrine-demo docs/pictures

Takes screenshots of the pages that the demo wrote, with Debian's chromium through playwright, as small WebP files.
"""

import argparse
import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH = 1200
QUALITY = 80
# Page, first and last element shown (CSS selectors), name of the screenshot.
VIEWS = (
    ("check/report.html", "h1", "h2:nth-of-type(1) + * + *", "check.webp"),
    ("run/report.html", "h1", ".cards .card:nth-child(3)", "report.webp"),
)
# Figures that are images already: file, name, width in pixels.
FIGURES = (("inspect/rollout.png", "attention.webp", 900),)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for page_file, first, last, name in VIEWS:
            page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
            page.goto((options.demo / page_file).absolute().as_uri())
            top, bottom = (page.locator(selector).first.bounding_box() for selector in (first, last))
            assert top and bottom
            start = max(top["y"] - 24, 0)
            view = {"x": 0, "y": start, "width": WIDTH, "height": bottom["y"] + bottom["height"] + 24 - start}
            picture = page.screenshot(full_page=True, clip=view)  # type: ignore[arg-type]
            save(Image.open(io.BytesIO(picture)), options.out / name)
            page.close()
        browser.close()
    for file, name, width in FIGURES:
        figure = Image.open(options.demo / file)
        height = round(figure.height * width / figure.width)
        save(figure.resize((width, height), Image.Resampling.LANCZOS), options.out / name)


def save(picture: Image.Image, path: Path) -> None:
    """Save as WebP: a page of text and small photos takes a tenth of the bytes of a PNG."""
    picture.convert("RGB").save(path, quality=QUALITY, method=6)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB, {picture.width} x {picture.height}")


if __name__ == "__main__":
    main()
