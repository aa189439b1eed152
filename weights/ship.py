"""Put trained weights into the package as a bundled model: half precision, class names and a model card.

    python weights/ship.py box/ti --name box:ti --figures ti.json --teacher teacher.json --log box/log.jsonl
    python weights/ship.py box/s --name box:s --figures s.json --teacher teacher.json --log box/log.jsonl \\
        --out s --release box-s.safetensors

The weights are anything that `vitrine.load` reads; figures are those of `card.py` for the model and for its
teacher, the log is that of `distil.py`. Prints how much half precision changes the logits, and refuses what is
too large for the package. With --release it also writes one file with its own record, and prints its entry for
the registry in `checkpoints/bundled.py`.
"""

import argparse
import json
from pathlib import Path

import torch
from describing import CARD, described, figures_table, read_log, sources_table

import vitrine
from vitrine.checkpoints import Loaded
from vitrine.checkpoints.locating import BOX_FOLDER
from vitrine.runtime.files import sha256_of

# By width: of the tiny model and of the small one. The wheel stays below 60 MB with both.
MOST_BYTES = {192: 12_500_000, 384: 45_500_000}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights")
    parser.add_argument("--name", required=True, help="box:ti or box:s")
    parser.add_argument("--figures", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True, help="the teacher's figures")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--start", default="Fresh weights", help="what training started from")
    parser.add_argument("--out", type=Path, default=BOX_FOLDER)
    parser.add_argument("--release", type=Path, help="also write one file, to be published beside a release")
    options = parser.parse_args()

    loaded = vitrine.load(options.weights)
    if loaded.classes is None or len(set(loaded.classes)) != loaded.model.config.num_classes:
        raise SystemExit(f"{options.weights} has no different name for each of its classes")
    images = torch.randn(8, 3, *loaded.preprocess.size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = loaded.model(images)
    text = card(loaded, options)
    vitrine.save(
        loaded.model.half(), options.out, preprocess=loaded.preprocess, classes=loaded.classes, recipe={},
        overwrite=True,
    )  # fmt: skip
    (options.out / "README.md").write_text(text, encoding="utf-8")
    with torch.no_grad():
        after = vitrine.load(options.out).model(images)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(
        f"{options.out}: {size:,} bytes; half precision moves a logit by {(after - before).abs().max():.4f} at most"
    )
    most = MOST_BYTES[loaded.model.config.width]
    if size > most:
        raise SystemExit(f"{size:,} bytes are more than {most:,}")
    if options.release is not None:
        print(release(loaded, options.release))


def card(loaded: Loaded, options: argparse.Namespace) -> str:
    """Return the model card."""
    config = loaded.model.config
    figures, teacher = (
        json.loads(path.read_text(encoding="utf-8")) for path in (options.figures, options.teacher)
    )
    sources, copies = sources_table(read_log(options.log))
    return CARD.format(
        name=options.name,
        variant=loaded.record.variant,
        width=config.width,
        depth=config.depth,
        heads=config.num_heads,
        params=sum(parameter.numel() for parameter in loaded.model.parameters()),
        size=loaded.preprocess.size[0],
        classes=len(loaded.classes or ()),
        start=options.start,
        copies=copies,
        sources=sources,
        figures=figures_table(figures, teacher, name=options.name),
        preprocess=described(loaded.preprocess),
    )


def release(loaded: Loaded, path: Path) -> str:
    """Write one file of half-precision weights with its own record; return its entry for the registry."""
    vitrine.save(
        loaded.model.half(),
        path,
        preprocess=loaded.preprocess,
        classes=loaded.classes,
        recipe={},
        overwrite=True,
    )
    return (
        f'release=Release(url="ADDRESS/{path.name}", sha256="{sha256_of(path)}", '
        f"num_bytes={path.stat().st_size}),"
    )


if __name__ == "__main__":
    main()
