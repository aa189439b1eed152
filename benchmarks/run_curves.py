"""Draw the curves of several runs in one figure, from their metrics.jsonl.

python benchmarks/run_curves.py runs/seed-0 runs/seed-1 runs/seed-2 --out docs/pictures/cifar10.svg
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "vitrine", "svg.fonttype": "none"})  # equal runs give equal files

from matplotlib import pyplot  # noqa: E402

PANELS = (
    ("loss", "loss", 1.0),
    ("accuracy", "accuracy on training images (%)", 100.0),
    ("lr", "learning rate", 1.0),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    figure, places = pyplot.subplots(1, len(PANELS), figsize=(11, 3), layout="constrained")
    for run in options.runs:
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        logged = [record for record in records if "lr" in record]
        for place, (name, label, factor) in zip(places, PANELS, strict=True):
            values = [factor * record[name] for record in logged]
            place.plot([record["step"] for record in logged], values, linewidth=0.8, label=run.name)
            place.set(xlabel="step", ylabel=label)
            place.grid(alpha=0.3)
    places[0].legend(frameon=False)
    figure.savefig(options.out, metadata={"Date": None})
    print(f"{options.out}: {options.out.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
